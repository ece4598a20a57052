# Our own NVMe driver over VFIO: the kernel's driver reads what it writes, and it reads what the kernel's driver writes; long
# PRP lists, several queues, interrupts, a reset with commands in flight; and no access that the IOMMU refuses.
#: iommu
#: kernel intel_iommu=on iommu=nopt
#: timeout 180
#: drive small 48M
#: drive large 48M
#: device nvme,id=ssd,serial=HWVFIO0001,mdts=9,max_ioqpairs=8
#: device nvme-ns,bus=ssd,drive=small,nsid=1,logical_block_size=512,physical_block_size=512
#: device nvme-ns,bus=ssd,drive=large,nsid=2,logical_block_size=4096,physical_block_size=4096
#: modules nvme vfio_iommu_type1 vfio-pci
#: example vfio_nvme
#: example device_blocks

DEVICE=$(basename $(dirname $(grep -l 0x010802 /sys/bus/pci/devices/*/class)))
to_vfio() { bind_driver $DEVICE vfio-pci; }
to_kernel() { bind_driver $DEVICE nvme && until_true 10 test -b /dev/nvme0n1 -a -b /dev/nvme0n2; }
kernel_reads() { vfio_nvme pattern $1 >/tmp/expected && dd if=/dev/nvme0n$1 bs=1M count=24 2>/dev/null | cmp - /tmp/expected; }
kernel_writes() { vfio_nvme pattern $1 | dd of=/dev/nvme0n$1 bs=64k oflag=direct conv=fsync 2>/dev/null; }
kernel_wipes() { for id; do dd if=/dev/zero of=/dev/nvme0n$id bs=1M count=24 oflag=direct 2>/dev/null || return; done; }

says() { local text=$1; shift; "$@" | grep -q "$text"; }

promise "without vfio-pci the refusal says how to bind the device" says driver_override device_blocks vfio:$DEVICE write
promise "the controller is bound to vfio-pci" to_vfio
promise "our driver writes every length on four queues" vfio_nvme $DEVICE write
sed 's/^/        | /' /tmp/said
promise "and reads it back" vfio_nvme $DEVICE verify
promise "a reset with commands in flight answers each once and keeps written data" vfio_nvme $DEVICE reset
sed 's/^/        | /' /tmp/said
promise "the kernel's driver takes the controller back" to_kernel
promise "and reads the blocks of 512 bytes that ours wrote" kernel_reads 1
promise "and blocks of 4096 bytes" kernel_reads 2
promise "the kernel wipes both" kernel_wipes 1 2
promise "our pattern is gone" refused kernel_reads 1
promise "the kernel writes the pattern, 512 bytes a block" kernel_writes 1
promise "and 4096 bytes a block" kernel_writes 2
promise "our driver takes it again" to_vfio
promise "and reads what the kernel wrote" vfio_nvme $DEVICE verify
promise "the device by its URL: many queues, every command, misuse, closed and opened again" device_blocks vfio:$DEVICE try
promise "the same with blocks of 4096 bytes" device_blocks "vfio:$DEVICE?ns=2" try
promise "it writes blocks of 512 bytes" device_blocks vfio:$DEVICE write
promise "and of 4096 bytes" device_blocks "vfio:$DEVICE?ns=2" write
promise "a namespace that is not there is refused" refused device_blocks "vfio:$DEVICE?ns=3" verify
promise "the kernel's driver takes it again" to_kernel
promise "and io_uring reads what ours wrote" device_blocks io-uring:/dev/nvme0n1 verify
promise "from both namespaces" device_blocks io-uring:/dev/nvme0n2 verify
promise "the IOMMU refused no access" refused iommu_faults
# QEMU's namespaces have no identifiers that would be the same after a reboot.
promise "nothing is wrong in the kernel's log" kernel_log_is_clean 'bogus Namespace Identifiers'
