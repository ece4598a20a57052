# Figure 2 of the NVMeDirect paper on an emulated SSD: random reads and writes of 4 KiB by the ways there are, same device, at
# several depths. Everything here is emulated, device and processor: only the lines' order and ratios say anything. By name:
# `make test-vm VM_ARGS=tests/vm/more/figure2.sh`; it checks nothing but that each way works. A release build tells more:
# `tests/vm/run.py --program target/release/headwater tests/vm/more/figure2.sh`.
#: iommu
#: kernel intel_iommu=on iommu=nopt
#: memory 768
#: timeout 900
#: drive one 128M
#: device nvme,id=ssd,serial=HWFIG0001,max_ioqpairs=8
#: device nvme-ns,bus=ssd,drive=one,nsid=1,logical_block_size=4096,physical_block_size=4096
#: modules nvme vfio_iommu_type1 vfio-pci
#: tools fio
#: headwater

ulimit -l unlimited
until_true 20 test -b /dev/nvme0n1
DEVICE=$(basename $(readlink /sys/class/nvme/nvme0/device))
SYS=/sys/bus/pci/devices/$DEVICE
SECONDS_EACH=4
to_vfio() {
  echo vfio-pci >$SYS/driver_override
  [ -e $SYS/driver ] && echo $DEVICE >$SYS/driver/unbind
  echo $DEVICE >/sys/bus/pci/drivers_probe
  until_true 5 test -e /dev/vfio/$(basename $(readlink $SYS/iommu_group))
}
to_kernel() {
  echo nvme >$SYS/driver_override
  echo $DEVICE >$SYS/driver/unbind
  echo $DEVICE >/sys/bus/pci/drivers_probe
  until_true 10 test -b /dev/nvme0n1
}
# row WAY DEPTH DIRECTION IOPS
row() { printf '        | %-12s depth %-3s %-6s %10.0f IOPS\n' "$1" "$2" "$3" "$4"; }
by_fio() {
  local iops
  iops=$(fio --minimal --name=f --filename=/dev/nvme0n1 --direct=1 --bs=4k --ioengine=$2 --iodepth=$3 --rw=rand$4 --time_based \
    --runtime=$SECONDS_EACH 2>/dev/null | cut -d';' -f$([ $4 = read ] && echo 8 || echo 49)) && [ "$iops" -gt 0 ] && row $1 $3 $4 $iops
}
by_us() {
  local share=1 iops
  [ $4 = write ] && share=0
  iops=$(headwater bench --device $2 --depth $3 --read-share $share --duration $SECONDS_EACH --json | sed -n 's/.*"rate": *\([0-9]*\).*/\1/p') &&
    [ "$iops" -gt 0 ] && row $1 $3 $4 $iops
}
for round in 1 2 3; do
  for direction in read write; do
    for depth in 1 8 32; do
      [ $depth = 1 ] && promise "round $round: pread/pwrite" by_fio kernel psync 1 $direction
      promise "round $round: fio's io_uring" by_fio fio-io_uring io_uring $depth $direction
      promise "round $round: our io_uring" by_us io-uring io-uring:/dev/nvme0n1 $depth $direction
      promise "round $round: passthrough" by_us nvme-ng nvme-ng:/dev/ng0n1 $depth $direction
    done
  done
  promise "round $round: to our driver" to_vfio
  for direction in read write; do
    for depth in 1 8 32; do
      promise "round $round: our driver" by_us vfio vfio:$DEVICE $depth $direction
    done
  done
  promise "round $round: back to the kernel" to_kernel
done
