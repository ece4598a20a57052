# A buffer pool over memory nodes: local first, then the closest node with free memory; and reserved huge pages.
#: nodes 4096 384 384
#: distance 0 1 30
#: distance 0 2 20
#: distance 1 2 15
#: kernel hugepagesz=1G hugepages=0:1 hugepagesz=2M hugepages=0:4,1:4,2:4
#: example numa_pool

free_huge() { cat /sys/devices/system/node/node$1/hugepages/hugepages-$2kB/free_hugepages; }
three() { [ "$(cat /sys/devices/system/node/has_memory)" = 0-2 ] && numa_pool nodes; }
reserved() { [ "$(free_huge 0 1048576) $(free_huge 0 2048) $(free_huge 1 2048) $(free_huge 2 2048)" = "1 4 4 4" ]; }
killed() { dmesg | grep -E 'Out of memory|oom-kill|invoked oom'; }

promise "the pool finds three nodes and their distances" three
promise "a thread gets memory of its own node, and of any node that it names" numa_pool local
promise "when its node is full it gets memory of the closest one, and a request that names the full node is refused" numa_pool spill
sed 's/^/        | /' /tmp/said
promise "no process was killed for memory" refused killed
promise "huge pages of 1 GiB and of 2 MiB are reserved" reserved
promise "chunks are backed by pages of 2 MiB of the requested node, and spill by distance" numa_pool huge-2m
sed 's/^/        | /' /tmp/said
promise "a chunk is backed by a page of 1 GiB; when there is none left, by the next smaller kind" numa_pool huge-1g
sed 's/^/        | /' /tmp/said
promise "every huge page is free again" reserved
promise "nothing is wrong in the kernel's log" kernel_log_is_clean
