# The device on a network: the kernel's own NVMe/TCP initiator discovers, connects, reads and writes keys and blocks, with and
# without digests, and reconnects after the node was killed.
#: net
#: modules nvme-tcp ext4 crc32c_generic
#: tools nvme fio mkfs.ext4
#: host serve tcp --nvme-tcp 127.0.0.1:0 --capacity 1GiB --durability on-flush
#: timeout 300

# Expected messages of the kernel: on the unknown subsystem, on the controller's RTD3E, and on its own clock under emulation.
EXPECTED='Connect Invalid Data Parameter|failed to connect queue: 0 ret=|Shutdown timeout set|loops_per_jiffy'
at=$(host address tcp nvme-tcp)
where="-t tcp -a ${at%:*} -s ${at#*:}"
redis() { host "redis-cli -p \${tcp_RESP##*:} $*"; }
is() { [ "$1" = "$2" ] || { echo "expected: $2"; echo "found:    $1"; return 1; }; }
# kv OPCODE KEY-LENGTH BYTES ARGUMENT...: one command for the key "tcp1" on the generic device.
kv() { local opcode=$1 cdw11=$2 bytes=$3; shift 3; nvme io-passthru $KEYS -n 1 -o $opcode --cdw10=$bytes --cdw11=$cdw11 --cdw2=0x31706374 "$@"; }
store() { printf '%s' "$1" >/tmp/value; kv 0x01 4 ${#1} -l ${#1} -w -i /tmp/value; }
retrieve() { kv 0x02 4 4096 -l 4096 -r -b 2>/dev/null | head -c "$1"; }

discovered() { nvme discover $where >/tmp/found && cat /tmp/found && grep -q '^trtype: *tcp' /tmp/found; }
promise "discovery finds one subsystem" discovered
NAME=$(sed -n 's/^subnqn: *//p' /tmp/found | head -n 1)
connect() { nvme connect $where -n "$NAME" --reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=5 "$@" && until_true 20 appeared; }
appeared() { CONTROLLER=$(ls -d /dev/nvme[0-9] 2>/dev/null | head -n 1); KEYS=$(ls /dev/ng*n1 2>/dev/null | head -n 1); [ -n "$KEYS" ]; }
promise "connect" connect --nr-io-queues=2
queues() { dmesg | grep -E 'creating [12] I/O queues'; }
promise "several I/O queues are created" queues
refused_name() { refused nvme connect $where -n nqn.2026-01.io.headwater:unknown; }
promise "a subsystem of another name is refused" refused_name
promise "nvme id-ctrl" nvme id-ctrl $CONTROLLER
optimized() { nvme list-subsys && nvme list-subsys -o json | grep -q live; }
promise "nvme list-subsys says live" optimized
promise "nvme ana-log" nvme ana-log $CONTROLLER
promise "nvme smart-log" nvme smart-log $CONTROLLER

promise "a value is stored by passthrough" store 'hello over the network'
to_redis() { is "$(redis get tcp1)" 'hello over the network'; }
promise "and read by redis-cli on the host" to_redis
from_redis() { redis set tcp1 forty-two; is "$(retrieve 9)" forty-two; }
promise "what Redis stored is retrieved" from_redis
megabyte() {
  head -c 1000000 /dev/urandom >/tmp/large
  kv 0x01 4 1000000 -l 1000000 -w -i /tmp/large && kv 0x02 4 1000000 -l 1000000 -r -b 2>/dev/null >/tmp/back
  cmp /tmp/large /tmp/back && is "$(redis strlen tcp1)" 1000000
}
promise "a value of a megabyte is stored and retrieved" megabyte
promise "exist finds a stored key" kv 0x14 4 0
promise "a key is deleted" kv 0x10 4 0
promise "exist does not find the deleted key" refused kv 0x14 4 0

created() {
  nvme create-ns $CONTROLLER --nsze=65536 --ncap=65536 --flbas=1 --csi=0 || return
  nvme attach-ns $CONTROLLER -n 2 -c "$(nvme id-ctrl $CONTROLLER | sed -n 's/^cntlid *: *//p')" && until_true 10 disk
}
disk() { DISK=$(ls /dev/nvme*n2 2>/dev/null | head -n 1); [ -b "$DISK" ]; }
promise "a block namespace is created and attached" created
verify() { fio --name=verify --filename=$DISK --direct=1 --verify=crc32c --verify_fatal=1 --group_reporting --minimal "$@" >/tmp/fio; }
promise "fio verifies two jobs of depth 16" verify --ioengine=io_uring --iodepth=16 --rw=randwrite --bsrange=4k-64k \
  --size=16m --numjobs=2 --offset_increment=16m --offset=64m
promise "fio verifies large blocks, with flushes" verify --ioengine=libaio --iodepth=8 --rw=randrw --bs=512k --size=32m \
  --offset=128m --fsync=16
filed() {
  mkfs.ext4 -q $DISK && mkdir -p /mnt/disk && mount -t ext4 $DISK /mnt/disk || return
  for n in $(seq 20); do head -c $((n * 9000)) /dev/urandom >/mnt/disk/$n; done
  (cd /mnt/disk && md5sum [0-9]* >sums) && sync && umount /mnt/disk
}
promise "a file system is made and filled" filed
unharmed() { mount -t ext4 $DISK /mnt/disk && (cd /mnt/disk && md5sum -c -s sums) && umount /mnt/disk; }
promise "and every file is unchanged" unharmed
promise "nothing is wrong in the kernel's log" kernel_log_is_clean "$EXPECTED"

promise "disconnect" nvme disconnect -n "$NAME"
gone() { [ ! -e "$DISK" ]; }
promise "the block device disappears" until_true 10 gone
promise "connect with header and data digests" connect --hdr-digest --data-digest
promise "the disk appears again" until_true 10 disk
promise "fio verifies with digests" verify --ioengine=io_uring --iodepth=16 --rw=randwrite --bsrange=4k-128k --size=16m --offset=64m
promise "every file is unchanged" unharmed
promise "a value is stored with digests" store 'digested'
promise "and flushed" nvme flush $KEYS -n 1
promise "nothing is wrong in the kernel's log" kernel_log_is_clean "$EXPECTED"

restarted() { host kill tcp && host serve tcp --nvme-tcp 127.0.0.1:${at#*:} --capacity 1GiB --durability on-flush; }
promise "the node is killed and started again" restarted
promise "the initiator reconnects and every file is unchanged" until_true 60 unharmed
digested() { is "$(retrieve 8)" digested; }
promise "and so is the value with digests" digested
promise "disconnect" nvme disconnect -n "$NAME"
promise "the block device disappears" until_true 10 gone
