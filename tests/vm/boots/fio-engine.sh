# fio through our engine on the I/O paths to an NVMe SSD that need a guest: passthrough and block device under the kernel's
# driver, and our own driver over VFIO behind an IOMMU. fio verifies what it writes, with several jobs and block sizes.
#: iommu
#: kernel intel_iommu=on iommu=nopt
#: memory 768
#: timeout 300
#: drive one 64M
#: drive two 64M
#: device nvme,id=kernel,serial=HWFIO0001,max_ioqpairs=8
#: device nvme-ns,bus=kernel,drive=one,nsid=1,logical_block_size=4096,physical_block_size=4096
#: device nvme,id=ours,serial=HWFIO0002,max_ioqpairs=8
#: device nvme-ns,bus=ours,drive=two,nsid=1,logical_block_size=512,physical_block_size=512
#: modules nvme vfio_iommu_type1 vfio-pci
#: tools fio
#: built fio/headwater.so

ulimit -l unlimited
until_true 20 test -b /dev/nvme0n1 -a -b /dev/nvme1n1
for number in 0 1; do
  case $(cat /sys/class/nvme/nvme$number/serial) in
    HWFIO0001*) KERNEL=$number ;;
    HWFIO0002*) OURS=$(basename $(readlink /sys/class/nvme/nvme$number/device)) ;;
  esac
done
promise "one SSD stays with the kernel's driver, the other is bound to vfio-pci" bind_driver $OURS vfio-pci

# A short report, so that a failed promise shows the error before it.
job() {
  local url=$1
  shift
  fio --minimal --ioengine=external:/usr/local/bin/headwater.so --url="$url" --thread=1 --name=job --verify=crc32c --verify_fatal=1 "$@"
}
for url in nvme-ng:/dev/ng${KERNEL}n1 io-uring:/dev/nvme${KERNEL}n1 vfio:$OURS; do
  promise "$url: 4 KiB" job $url --rw=randwrite --bs=4k --size=4m --iodepth=16
  promise "$url: 1 MiB, more than one PRP list page" job $url --rw=write --bs=1m --size=16m --iodepth=4
  promise "$url: three jobs" job $url --rw=randwrite --bs=16k --size=2m --offset_increment=4m --numjobs=3 --iodepth=4
  promise "$url: completions by interrupt" job $url --completion=interrupt --rw=randwrite --bs=8k --size=2m --iodepth=4
  promise "$url: completions by a polling thread" job $url --completion=thread --rw=randwrite --bs=8k --size=2m --iodepth=4
done
promise "nothing is wrong in the kernel's log" kernel_log_is_clean bogus
promise "the IOMMU refused nothing" sh -c '! dmesg | grep -E "DMAR: .*([^e]fault|DMA (Read|Write))"'
