# An NVMe SSD that a node owns by VFIO and shares: two users without privileges, each with its own blocks, one of them killed
# with commands in flight; another user with a hardware queue, killed likewise, and, restarted, still running when the node is
# killed; and no access that the IOMMU refuses.
#: iommu
#: kernel intel_iommu=on iommu=nopt
#: memory 768
#: timeout 240
#: drive disk 64M
#: device nvme,id=ssd,serial=HWSHARE0001,mdts=6,max_ioqpairs=4
#: device nvme-ns,bus=ssd,drive=disk,nsid=1,logical_block_size=512,physical_block_size=512
#: modules nvme vfio_iommu_type1 vfio-pci
#: headwater
#: example shared_ssd
#: tools setpriv

DEVICE=$(basename $(dirname $(grep -l 0x010802 /sys/bus/pci/devices/*/class)))
SOCKET=/tmp/ssd.sock
ALICE=1001 BOB=1002 MALLORY=1003 TRENT=1004
to_vfio() { bind_driver $DEVICE vfio-pci; }
to_kernel() { bind_driver $DEVICE nvme && until_true 10 test -b /dev/nvme0n1; }
# Busybox's setpriv cannot change users.
as() { local uid=$1; shift; /usr/local/bin/setpriv --reuid $uid --regid $uid --clear-groups "$@"; }
client() { local uid=$1 url=attach:$SOCKET; shift; [ $uid = $TRENT ] && url="$url?direct=1"; as $uid shared_ssd $url "$@"; }
says() { local text=$1; shift; "$@" 2>&1 | grep -qe "$text"; }
serving() { headwater serve --data /tmp/node --device vfio:$DEVICE --attach $SOCKET --metrics 127.0.0.1:0 --ready-file /tmp/ready >/tmp/serve.log 2>&1 & NODE=$!
  until_true 60 test -e /tmp/ready || { cat /tmp/serve.log; return 1; }; }
grant() { headwater attach --socket $SOCKET grant "$@"; }
stopped() { kill -TERM $NODE && wait $NODE; }
loading() { client $1 load $2 $3 >/tmp/load.log 2>&1 & LOAD=$!; until_true 10 grep -q loading /tmp/load.log; }
# Kills the client itself, not the shell that runs it.
killed() { kill -9 $(pidof shared_ssd) && ! wait $LOAD; }
alone() { [ "$(headwater attach --socket $SOCKET list --json | grep -o '"pid"' | wc -l)" = 1 ]; }

promise "the disk is wiped by the kernel" dd if=/dev/zero of=/dev/nvme0n1 bs=1M count=64 oflag=direct
promise "without vfio-pci the refusal says how to bind the device" \
  says driver_override headwater serve --data /tmp/refused --device vfio:$DEVICE --metrics 127.0.0.1:0
promise "the controller is bound to vfio-pci" to_vfio
promise "a node takes the SSD" serving
cat /tmp/serve.log | sed 's/^/        | /'
promise "the first user is granted blocks" grant --uid $ALICE --namespace 1 --blocks 16384..49152
promise "the second user is granted the blocks behind them" grant --uid $BOB --namespace 1 --blocks 49152..81920
promise "a user without a grant is refused" says "nothing is granted to uid $MALLORY" client $MALLORY verify 0 8
promise "the first user writes its blocks" client $ALICE write 16384 32768
promise "the second user writes its blocks" client $BOB write 49152 32768
promise "the first user reads back its blocks" client $ALICE verify 16384 32768
promise "the second user reads back its blocks" client $BOB verify 49152 32768
promise "no command of the first user reaches a block outside its grant" client $ALICE outside 16384 32768
promise "no command of the second user reaches a block outside its grant" client $BOB outside 49152 32768
promise "the second user has a full queue in flight" loading $BOB 49152 32768
promise "and is killed" killed
promise "the blocks of the first user are unchanged" client $ALICE verify 16384 32768
promise "the first user continues to write" client $ALICE write 16384 32768
promise "the resources of the killed client are released" until_true 5 alone
promise "the restarted second user reads back every block" client $BOB verify 49152 32768
promise "a fourth user is granted blocks too" grant --uid $TRENT --blocks 81920..98304
promise "its request for a hardware queue is refused, with the missing option" says "--direct" client $TRENT verify 81920 8
promise "a direct grant limited to blocks is refused" refused grant --uid $TRENT --direct --blocks 81920..98304
promise "the fourth user is granted hardware queues" grant --uid $TRENT --direct
promise "it writes by its own doorbells" client $TRENT write 81920 16384
promise "it reads back its blocks" client $TRENT verify 81920 16384
promise "it reads the blocks that the first user wrote through the node" client $TRENT verify 16384 32768
promise "it has a full queue in flight" loading $TRENT 81920 16384
promise "while the first user writes through the node" client $ALICE write 16384 32768
promise "and is killed" killed
promise "the blocks of the first user are unchanged" client $ALICE verify 16384 32768
promise "the queue of the killed client is returned" until_true 5 alone
promise "the restarted fourth user reads back every block" client $TRENT verify 81920 16384
promise "it has a full queue in flight again" loading $TRENT 81920 16384
crashed() { kill -9 $NODE; ! wait $NODE && rm /tmp/ready; }
promise "the node is killed while the client has commands in flight" crashed
promise "a new node takes the SSD, because the client released it" serving
back() { kill -0 $LOAD && [ "$(headwater attach --socket $SOCKET list --json | grep -oE '"queues": ?1,' | wc -l)" = 1 ]; }
promise "the client continues with a queue of the new node" until_true 5 back
promise "the client is killed" killed
promise "the first user reads back its blocks through the new node" client $ALICE verify 16384 32768
promise "the fourth user reads back its blocks through the new node" client $TRENT verify 81920 16384
promise "the node stops, and shuts the controller down" stopped
cat /tmp/serve.log | tail -n 3 | sed 's/^/        | /'
promise "the kernel takes the controller back" to_kernel
# Blocks of 512 bytes: 8 MiB before the grants, 40 MiB of three users, the rest behind them.
untouched() {
  dd if=/dev/nvme0n1 bs=1M count=8 2>/dev/null | cmp -n $((8 << 20)) - /dev/zero \
    && dd if=/dev/nvme0n1 bs=1M skip=48 count=16 2>/dev/null | cmp -n $((16 << 20)) - /dev/zero
}
promise "every block outside the grants is unchanged" untouched
promise "the IOMMU refused no access" refused iommu_faults
# QEMU's namespaces have no identifiers that would be the same after a reboot.
promise "nothing is wrong in the kernel's log" kernel_log_is_clean 'bogus Namespace Identifiers'
