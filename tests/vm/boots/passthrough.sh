# An SSD that the kernel drives, used at the same time by our program: every block command by passthrough, compared with the
# kernel's block device; keys of a key-value namespace; and partition 2 while the kernel has a file system on partition 1.
#: host serve kv --vfio-user kv.sock
#: vfio-user kv.sock
#: drive whole 32M
#: drive shared 128M
#: device nvme,id=ssd,serial=HWNG0001,mdts=7,max_ioqpairs=8
#: device nvme-ns,bus=ssd,drive=whole,nsid=1,logical_block_size=512,physical_block_size=512
#: device nvme-ns,bus=ssd,drive=shared,nsid=2,logical_block_size=4096,physical_block_size=4096
#: kernel nvme.poll_queues=2
#: modules nvme ext4 crc32c_generic
#: tools fio mkfs.ext4 e2fsck blockdev
#: example nvme_ng
#: example device_keys
#: memory 768
#: timeout 420

found() {
  until_true 20 test -c /dev/ng0n1 -a -c /dev/ng1n1 && until_true 5 sh -c 'test -b /dev/nvme0n2 -o -b /dev/nvme1n2' || return
  for number in 0 1; do
    case $(cat /sys/class/nvme/nvme$number/serial) in HWNG0001*) SSD=$number;; *) KEYS=/dev/ng${number}n1;; esac
  done
  [ -b /dev/nvme${SSD}n2 ] && [ -c $KEYS ] && WHOLE=/dev/nvme${SSD}n1 DISK=/dev/nvme${SSD}n2 NG=/dev/ng${SSD}n
}
promise "the kernel has the SSD and a key-value namespace" found
said() { sed 's/^/        | /' /tmp/said; }

promise "every block command by passthrough, compared with the block device" nvme_ng golden nvme-ng:${NG}1 $WHOLE
said
promise "the same with an ioctl for each command" nvme_ng golden "nvme-ng:${NG}1?plain=1" $WHOLE
promise "the same with polled completions" nvme_ng golden "nvme-ng:${NG}1?poll=1" $WHOLE
promise "the same on the block device by io_uring" nvme_ng golden io-uring:$WHOLE $WHOLE
promise "the same on the block device, polled" nvme_ng golden "io-uring:$WHOLE?poll=1" $WHOLE
promise "values and keys by passthrough" device_keys nvme-ng:$KEYS try
said
promise "the same with an ioctl for each command" device_keys "nvme-ng:$KEYS?plain=1" try

# Two partitions of an MBR, which counts in blocks of 4,096 bytes here: 16,384 blocks from 256 on, 14,336 from 16,640 on.
entry() { printf '\0\0\0\0\203\0\0\0'; printf "$1"; }
partitioned() {
  {
    head -c 446 /dev/zero; entry '\0\1\0\0\0\100\0\0'; entry '\0\101\0\0\0\70\0\0'; head -c 32 /dev/zero; printf '\125\252'
  } >/tmp/mbr
  head -c 3584 /dev/zero >>/tmp/mbr
  dd if=/tmp/mbr of=$DISK bs=4096 conv=fsync && blockdev --rereadpt $DISK && until_true 10 test -b ${DISK}p2
}
promise "the disk has two partitions" partitioned
OURS="nvme-ng:${NG}2?partition=2"
mounted() { mkfs.ext4 -q ${DISK}p1 && mkdir -p /mnt/disk && mount -t ext4 ${DISK}p1 /mnt/disk; }
promise "ext4 is made on partition 1 and mounted" mounted
promise "every block command on partition 2 by passthrough" nvme_ng golden "$OURS" ${DISK}p2
# together URL: fio verifies files of partition 1 while our program writes and reads partition 2.
together() {
  nvme_ng traffic "$1" 12 >/tmp/traffic 2>&1 & local ours=$!
  fio --name=kernel --directory=/mnt/disk --size=6m --numjobs=2 --direct=1 --ioengine=io_uring --iodepth=8 --rw=randwrite \
    --bsrange=4k-64k --fsync=32 --loops=2 --verify=crc32c --verify_fatal=1 --group_reporting --minimal >/tmp/fio || return
  wait $ours; local status=$?; cat /tmp/traffic; return $status
}
promise "fio verifies files of partition 1 while partition 2 is used by passthrough" together "$OURS"
said
promise "and while it is used by io_uring, bypassing the page cache" together io-uring:${DISK}p2
said
filled() { head -c 20000000 /dev/urandom >/mnt/disk/file && (cd /mnt/disk && md5sum file kernel* >/tmp/sums) && umount /mnt/disk; }
promise "files are written and the file system unmounted" filled
sum_outside() { dd if=$DISK bs=4096 count=16640 2>/dev/null | md5sum; dd if=$DISK bs=4096 skip=30976 2>/dev/null | md5sum; }
fresh() { echo 3 >/proc/sys/vm/drop_caches; blockdev --flushbufs $DISK; }
fresh; sum_outside >/tmp/before
promise "every command that leaves partition 2 is refused, each range of a discard too" nvme_ng outside "$OURS"
said
promise "the same by io_uring" nvme_ng outside io-uring:${DISK}p2
no_partition() { refused nvme_ng outside "nvme-ng:${NG}2?partition=3" && nvme_ng outside "nvme-ng:${NG}2?partition=3" 2>&1 | grep 'no partition 3'; }
promise "a partition that is not there is refused" no_partition
wiped() { nvme_ng golden "$OURS" ${DISK}p2 && nvme_ng traffic "$OURS" 2; }
promise "partition 2 is written once more" wiped
untouched() { fresh; sum_outside >/tmp/after; cmp /tmp/before /tmp/after; }
promise "no byte outside partition 2 has changed" untouched
promise "the file system is clean" e2fsck -f -n ${DISK}p1
unharmed() { mount -t ext4 ${DISK}p1 /mnt/disk && (cd /mnt/disk && md5sum -c -s /tmp/sums) && umount /mnt/disk; }
promise "and every file is unchanged" unharmed
# QEMU's namespaces have no identifiers that would be the same after a reboot.
promise "nothing is wrong in the kernel's log" kernel_log_is_clean 'bogus Namespace Identifiers'
