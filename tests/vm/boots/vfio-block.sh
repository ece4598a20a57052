# A block namespace as a PCIe SSD: file system, fio, discard, reboot, and the removal after its server was killed.
#: host serve disk --vfio-user disk.sock --capacity 1GiB --durability on-flush
#: vfio-user disk.sock
#: modules nvme ext4
#: tools nvme fio mkfs.ext4
#: kernel nvme_core.io_timeout=4 nvme_core.admin_timeout=4
#: reboots
#: timeout 240

DISK=/dev/nvme0n2
mount_it() { mkdir -p /mnt/disk && mount -t ext4 -o discard "$1" /mnt/disk; }
written() {
  mkdir /mnt/disk/files
  for n in $(seq 40); do head -c $((n * 4096 + n)) /dev/urandom >/mnt/disk/files/$n; done
  (cd /mnt/disk && md5sum files/* >sums) && sync
}
unharmed() { (cd /mnt/disk && md5sum -c -s sums); }

if ! host 'test -e rebooted' >/dev/null 2>&1; then
  promise "the stock driver takes the device" until_true 10 test -e /dev/nvme0
  created() {
    nvme create-ns /dev/nvme0 --nsze=131072 --ncap=131072 --flbas=1 --csi=0
    nvme attach-ns /dev/nvme0 -n 2 -c 1
    until_true 10 test -b $DISK
  }
  promise "a block namespace of 4 KiB blocks is created and attached" created
  promise "nvme id-ns" nvme id-ns /dev/nvme0 -n 2
  promise "mkfs.ext4" mkfs.ext4 -q $DISK
  promise "mount" mount_it $DISK
  promise "files are written" written
  promise "umount" umount /mnt/disk
  host 'touch rebooted'
  reboot -f; sleep 60
fi

promise "the driver takes the device after the reboot" until_true 10 test -b $DISK
promise "the file system mounts again" mount_it $DISK
promise "every file is unchanged" unharmed
promise "fstrim" fstrim -v /mnt/disk
promise "and nothing but free space was discarded" unharmed
umount /mnt/disk

verify() { fio --name=verify --filename=$DISK --direct=1 --verify=crc32c --verify_fatal=1 --group_reporting --minimal "$@" >/tmp/fio; }
promise "fio verifies what io_uring wrote, two jobs of depth 16" verify --ioengine=io_uring --iodepth=16 --rw=randwrite \
  --bsrange=4k-64k --size=16m --numjobs=2 --offset_increment=16m --offset=64m
promise "fio verifies what libaio wrote, with flushes" verify --ioengine=libaio --iodepth=8 --rw=randrw --bs=8k --size=8m \
  --offset=128m --fsync=64
zeroed() {
  blkdiscard -o $((64 << 20)) -l $((32 << 20)) $DISK
  dd if=$DISK bs=1M skip=64 count=4 iflag=direct 2>/dev/null | cmp -n $((4 << 20)) - /dev/zero
}
promise "discarded blocks read as zeroes" zeroed

promise "nvme format to 512 byte blocks" nvme format /dev/nvme0 -n 2 --lbaf=0 --force
smaller() { nvme ns-rescan /dev/nvme0; [ "$(cat /sys/block/nvme0n2/queue/logical_block_size)" = 512 ]; }
promise "the driver sees the new block size" until_true 10 smaller
odd() {
  head -c 512 /dev/urandom >/tmp/sector
  dd if=/tmp/sector of=$DISK bs=512 seek=7 oflag=direct && dd if=$DISK bs=512 skip=7 count=1 iflag=direct | cmp - /tmp/sector
}
promise "a single sector is written and read back" odd
promise "nvme write-zeroes" nvme write-zeroes $DISK -s 7 -c 0
promise "nvme compare notices the difference" refused nvme compare $DISK -s 7 -c 0 -z 512 -d /tmp/sector
promise "nvme smart-log" nvme smart-log /dev/nvme0
promise "nvme detach-ns" nvme detach-ns /dev/nvme0 -n 2 -c 1
gone() { [ ! -e $DISK ]; }
promise "the block device disappears" until_true 10 gone
promise "nvme attach-ns" nvme attach-ns /dev/nvme0 -n 2 -c 1
promise "the block device appears again" until_true 10 test -b $DISK
promise "nvme delete-ns" nvme delete-ns /dev/nvme0 -n 2
promise "the block device is gone" until_true 10 gone
promise "nothing is wrong in the kernel's log" kernel_log_is_clean

promise "the server is killed" host kill disk
dead() { [ ! -e /dev/nvme0 ] || ! nvme id-ctrl /dev/nvme0 >/dev/null 2>&1; }
promise "the driver removes the device, and the guest continues" until_true 60 dead
