# A PCIe SSD for a guest in huge pages of a pool, as machines with many guests and SPDK use them. QEMU does not seal them.
#: host serve disk --vfio-user disk.sock --capacity 512MiB --durability on-flush
#: vfio-user disk.sock
#: modules nvme
#: tools nvme fio
#: memory 384
#: memory-kind huge-pages

DISK=/dev/nvme0n2
promise "the stock driver takes the device" until_true 10 test -e /dev/nvme0
promise "its doorbells are in guest memory" host 'grep -q "doorbells are in its memory" disk.log'
created() {
  nvme create-ns /dev/nvme0 --nsze=65536 --ncap=65536 --flbas=1 --csi=0
  nvme attach-ns /dev/nvme0 -n 2 -c 1
  until_true 10 test -b $DISK
}
promise "a block namespace is created and attached" created
verify() { fio --name=verify --filename=$DISK --direct=1 --verify=crc32c --verify_fatal=1 --minimal "$@" >/tmp/fio; }
promise "fio verifies small blocks at depth 16" verify --ioengine=io_uring --iodepth=16 --rw=randrw --bs=4k --size=8m
promise "fio verifies large blocks at depth 8" verify --ioengine=libaio --iodepth=8 --rw=randwrite --bs=512k --size=64m
served() { ! host 'grep -i "cannot be mapped" disk.log'; }
promise "the node refused no memory" served
promise "nothing is wrong in the kernel's log" kernel_log_is_clean
