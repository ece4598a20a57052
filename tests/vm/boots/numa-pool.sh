# A buffer pool over memory nodes: local first, then the closest that has room, and huge pages that were set aside.
#: nodes 4096 384 384
#: distance 0 1 30
#: distance 0 2 20
#: distance 1 2 15
#: kernel hugepagesz=1G hugepages=0:1 hugepagesz=2M hugepages=0:4,1:4,2:4
#: example numa_pool

free_huge() { cat /sys/devices/system/node/node$1/hugepages/hugepages-$2kB/free_hugepages; }
three() { [ "$(cat /sys/devices/system/node/has_memory)" = 0-2 ] && numa_pool nodes; }
aside() { [ "$(free_huge 0 1048576) $(free_huge 0 2048) $(free_huge 1 2048) $(free_huge 2 2048)" = "1 4 4 4" ]; }
killed() { dmesg | grep -E 'Out of memory|oom-kill|invoked oom'; }

promise "the pool finds three nodes, and how far apart they are" three
promise "a thread gets memory of its own node, and of any that it names" numa_pool local
promise "when its node is full it gets the closest other's, and who named the full one is told" numa_pool spill
sed 's/^/        | /' /tmp/said
promise "no process was killed for memory" refused killed
promise "huge pages are set aside, of 1 GiB and of 2 MiB" aside
promise "pages of 2 MiB stand behind chunks, on the node that was asked, and spill by distance" numa_pool huge-2m
sed 's/^/        | /' /tmp/said
promise "a page of 1 GiB stands behind a chunk; what the kernel has no more of is made of the next kind" numa_pool huge-1g
sed 's/^/        | /' /tmp/said
promise "every huge page is back" aside
promise "nothing is wrong in the kernel's log" kernel_is_content
