# A PCIe SSD behind a virtual IOMMU with translation, in memory that the hypervisor can shrink: Linux's driver maps each page
# for one command, and maps memory that the device only reads for reading.
#: host serve disk --vfio-user disk.sock --capacity 1GiB --durability on-flush
#: vfio-user disk.sock
#: modules nvme ext4
#: tools nvme fio mkfs.ext4
#: iommu
#: kernel intel_iommu=on
#: memory-kind file
#: timeout 240

DISK=/dev/nvme0n2
is() { [ "$1" = "$2" ] || { echo "expected: $2"; echo "found:    $1"; return 1; }; }

promise "the stock driver takes the device" until_true 20 test -e /dev/nvme0
translated() { is "$(cat /sys/class/nvme/nvme0/device/iommu_group/type)" DMA; }
promise "its IOMMU translates, strictly" translated
created() {
  nvme create-ns /dev/nvme0 --nsze=131072 --ncap=131072 --flbas=1 --csi=0
  nvme attach-ns /dev/nvme0 -n 2 -c 1
  until_true 10 test -b $DISK
}
promise "a block namespace is created and attached" created
verify() { fio --name=verify --filename=$DISK --direct=1 --verify=crc32c --verify_fatal=1 --minimal "$@" >/tmp/fio; }
promise "fio verifies small blocks at depth 16" verify --ioengine=io_uring --iodepth=16 --rw=randrw --bs=4k --size=2m
promise "fio verifies large blocks at depth 4" verify --ioengine=libaio --iodepth=4 --rw=randwrite --bs=512k --size=16m
filed() {
  mkfs.ext4 -q $DISK && mkdir -p /mnt/disk && mount -t ext4 $DISK /mnt/disk || return
  for n in $(seq 10); do head -c $((n * 9000)) /dev/urandom >/mnt/disk/$n; done
  (cd /mnt/disk && md5sum [0-9]* >sums) && sync && umount /mnt/disk
}
promise "a file system is made and filled" filed
again() {
  local at=$(basename "$(readlink -f /sys/class/nvme/nvme0/device)") n
  for n in 1 2 3; do
    echo "$at" >/sys/bus/pci/drivers/nvme/unbind && echo "$at" >/sys/bus/pci/drivers/nvme/bind || return
    until_true 20 test -b $DISK || return
  done
}
promise "the driver is unbound and bound again, three times" again
promise "and resets the controller" nvme reset /dev/nvme0
unharmed() { until_true 10 test -b $DISK && mount -t ext4 $DISK /mnt/disk && (cd /mnt/disk && md5sum -c -s sums) && umount /mnt/disk; }
promise "every file is unchanged" unharmed
faultless() { ! dmesg | grep -E 'DMAR: \[DMA|DMAR:.*fault'; }
promise "no access faulted" faultless
served() { ! host 'grep -iE "cannot be mapped" disk.log'; }
promise "the node refused no memory" served
promise "nothing is wrong in the kernel's log" kernel_log_is_clean 'resetting controller|Shutdown timeout set'
