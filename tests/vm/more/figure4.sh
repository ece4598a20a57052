# Figure 4 of the NVMeDirect paper in a guest: four users that each keep four random writes of 4 KiB in flight, one of them to be
# boosted. On QEMU's SSD and on a node's device behind vfio-user: by the kernel (four jobs of fio) and by our driver, boosted or
# not; on the node's device, whose controller has weighted round robin, by weights too. Device and processor are emulated, and
# both devices take every command at once: no command waits in a queue, so arbitration has no effect and no user is boosted. An
# overloaded SSD shows the effect: `differentiated vfio:ADDR?weights=3:2:1 10`. It only checks that each path works. Run it by
# name, with a release build; it takes one minute:
# cargo build --release --package headwater-node --package headwater --example differentiated --bin headwater
# tests/vm/run.py --program target/release/headwater tests/vm/more/figure4.sh
#: host serve node --vfio-user node.sock --capacity 512MiB --durability on-flush
#: vfio-user node.sock
#: iommu
#: kernel intel_iommu=on iommu=pt
#: memory 1024
#: timeout 300
#: drive one 128M
#: device nvme,id=ssd,serial=HWFIG0004,max_ioqpairs=8
#: device nvme-ns,bus=ssd,drive=one,nsid=1,logical_block_size=4096,physical_block_size=4096
#: modules nvme vfio_iommu_type1 vfio-pci
#: tools fio
#: example differentiated

ulimit -l unlimited
SECONDS_EACH=4
# on SERIAL-PATTERN: the controller of that serial number.
on() { basename $(dirname $(grep -l "$1" /sys/class/nvme/nvme*/serial)); }
promise "a namespace of blocks is created on the host" host '$HEADWATER namespace create --socket node/attach.sock --blocks 4096 --size 128MiB'
until_true 20 test -b /dev/nvme0n1 -a -d /sys/class/nvme/nvme1
QEMU=$(on HWFIG0004)
OURS=$([ $QEMU = nvme0 ] && echo nvme1 || echo nvme0)
until_true 10 test -b /dev/${OURS}n2
address() { basename $(readlink /sys/class/nvme/$1/device); }
QEMU_AT=$(address $QEMU) OURS_AT=$(address $OURS)
# kernel DEVICE: a row of four jobs, each with its writes a second.
kernel() {
  fio --minimal --name=user --numjobs=4 --filename=$1 --direct=1 --bs=4k --ioengine=io_uring --iodepth=4 --rw=randwrite --time_based \
    --runtime=$SECONDS_EACH 2>/dev/null | awk -F';' '
      $49 > 0 { rates[++users] = $49 }
      END {
        if (users != 4) exit 1
        most = rates[2] > rates[3] ? rates[2] : rates[3]
        if (rates[4] > most) most = rates[4]
        printf "{\"figure\":\"4\",\"way\":\"kernel\",\"first\":%d,\"rest\":[%d,%d,%d],\"beside_the_best_other\":%.2f}\n",
          rates[1], rates[2], rates[3], rates[4], rates[1] / most
      }' >>/tmp/rows
}
ours() { differentiated "$1" $SECONDS_EACH >>/tmp/rows; }
for device in $QEMU,1,$QEMU_AT, $OURS,2,$OURS_AT,'&weights=3:2:1'; do
  IFS=, read -r name namespace at weights <<END
$device
END
  : >/tmp/rows
  promise "$name: the kernel" kernel /dev/${name}n$namespace
  promise "$name: to our driver" bind_driver $at vfio-pci
  promise "$name: by our driver" ours "vfio:$at?ns=$namespace$weights"
  sed 's/^/        | /' /tmp/rows
done
