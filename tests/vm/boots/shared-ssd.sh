# An NVMe SSD that a node owns by VFIO and shares: two users without privileges, each with blocks of its own, one of them
# killed in full flight; a third who is trusted with a queue of the SSD's, killed likewise, and who in another life outlives
# the node; and not one access that the IOMMU refuses.
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
to_vfio() { give $DEVICE vfio-pci; }
to_kernel() { give $DEVICE nvme && until_true 10 test -b /dev/nvme0n1; }
# The applet of this name knows no users.
as() { local uid=$1; shift; /usr/local/bin/setpriv --reuid $uid --regid $uid --clear-groups "$@"; }
client() { local uid=$1 url=attach:$SOCKET; shift; [ $uid = $TRENT ] && url="$url?direct=1"; as $uid shared_ssd $url "$@"; }
says() { local text=$1; shift; "$@" 2>&1 | grep -qe "$text"; }
serving() { headwater serve --data /tmp/node --device vfio:$DEVICE --attach $SOCKET --metrics 127.0.0.1:0 --ready-file /tmp/ready >/tmp/serve.log 2>&1 & NODE=$!
  until_true 60 test -e /tmp/ready || { cat /tmp/serve.log; return 1; }; }
grant() { headwater attach --socket $SOCKET grant "$@"; }
stopped() { kill -TERM $NODE && wait $NODE; }
loading() { client $1 load $2 $3 >/tmp/load.log 2>&1 & LOAD=$!; until_true 10 grep -q loading /tmp/load.log; }
# The shell that ran it stands between: the client itself is killed.
killed() { kill -9 $(pidof shared_ssd) && ! wait $LOAD; }
alone() { [ "$(headwater attach --socket $SOCKET list --json | grep -o '"pid"' | wc -l)" = 1 ]; }

promise "the disk is wiped by the kernel" dd if=/dev/zero of=/dev/nvme0n1 bs=1M count=64 oflag=direct
promise "without vfio-pci the refusal says how to bind the device" \
  says driver_override headwater serve --data /tmp/refused --device vfio:$DEVICE --metrics 127.0.0.1:0
promise "the controller is bound to vfio-pci" to_vfio
promise "a node owns it" serving
cat /tmp/serve.log | sed 's/^/        | /'
promise "the first user is granted a part" grant --uid $ALICE --namespace 1 --blocks 16384..49152
promise "the second the part behind it" grant --uid $BOB --namespace 1 --blocks 49152..81920
promise "a third user is not let in" says "nothing is granted to uid $MALLORY" client $MALLORY verify 0 8
promise "the first writes its blocks" client $ALICE write 16384 32768
promise "the second its own" client $BOB write 49152 32768
promise "the first finds what it wrote" client $ALICE verify 16384 32768
promise "and the second too" client $BOB verify 49152 32768
promise "no command of the first reaches a block beside its own" client $ALICE outside 16384 32768
promise "nor one of the second" client $BOB outside 49152 32768
promise "the second works in full flight" loading $BOB 49152 32768
promise "and is killed" killed
promise "which leaves the first unharmed" client $ALICE verify 16384 32768
promise "who writes on" client $ALICE write 16384 32768
promise "what the dead held is taken back" until_true 5 alone
promise "a second life finds every block whole" client $BOB verify 49152 32768
promise "a fourth user is granted blocks too" grant --uid $TRENT --blocks 81920..98304
promise "and when it asks for a queue of the SSD's it is told what is missing" says "--direct" client $TRENT verify 81920 8
promise "trust goes with no window" refused grant --uid $TRENT --direct --blocks 81920..98304
promise "the fourth is trusted with queues of the SSD's" grant --uid $TRENT --direct
promise "it writes by its own doorbells" client $TRENT write 81920 16384
promise "finds what it wrote" client $TRENT verify 81920 16384
promise "and what the first wrote by the node" client $TRENT verify 16384 32768
promise "it works in full flight" loading $TRENT 81920 16384
promise "while the first writes by the node" client $ALICE write 16384 32768
promise "and is killed" killed
promise "which leaves the first unharmed" client $ALICE verify 16384 32768
promise "what the dead borrowed is taken back" until_true 5 alone
promise "its next life finds every block whole" client $TRENT verify 81920 16384
promise "it works in full flight again" loading $TRENT 81920 16384
crashed() { kill -9 $NODE; ! wait $NODE && rm /tmp/ready; }
promise "the node is killed under it" crashed
promise "and another one gets the SSD, because the client let go of it" serving
back() { kill -0 $LOAD && [ "$(headwater attach --socket $SOCKET list --json | grep -oE '"queues": ?1,' | wc -l)" = 1 ]; }
promise "the client goes on with a queue of the new one" until_true 5 back
promise "until it is killed" killed
promise "and the first finds its blocks whole" client $ALICE verify 16384 32768
promise "and the fourth" client $TRENT verify 81920 16384
promise "the node stops, and shuts the controller down" stopped
cat /tmp/serve.log | tail -n 3 | sed 's/^/        | /'
promise "the kernel takes the controller back" to_kernel
# Blocks of 512 bytes: 8 MiB before, 40 MiB of three users, the rest behind.
untouched() {
  dd if=/dev/nvme0n1 bs=1M count=8 2>/dev/null | cmp -n $((8 << 20)) - /dev/zero \
    && dd if=/dev/nvme0n1 bs=1M skip=48 count=16 2>/dev/null | cmp -n $((16 << 20)) - /dev/zero
}
promise "and finds every block outside the grants as it was" untouched
promise "the IOMMU saw no address that was not mapped" refused faults
# QEMU's namespaces have no identifiers that would be the same after a reboot.
promise "nothing is wrong in the kernel's log" kernel_is_content 'bogus Namespace Identifiers'
