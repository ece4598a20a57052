# A buffer pool whose memory a PCI device reaches through an IOMMU: mapped, used, unmapped, with no fault but the expected last one.
#: iommu
#: kernel intel_iommu=on iommu=nopt
#: device edu,dma_mask=0xffffffff
#: modules vfio_iommu_type1 vfio-pci
#: example vfio_pool

edu() { basename $(dirname $(grep -l 0x11e8 /sys/bus/pci/devices/*/device)); }
DEVICE=$(edu)

promise "the device is behind an IOMMU, alone in its group" bind_driver $DEVICE vfio-pci
promise "a pool's chunks are mapped, a device copies between their buffers, all chunks are unmapped" vfio_pool $DEVICE
sed 's/^/        | /' /tmp/said
promise "the IOMMU refused no access" refused iommu_faults
promise "a container is opened again, and the device reads an unmapped address" vfio_pool $DEVICE stale
promise "the IOMMU refuses it, and the kernel logs the fault" until_true 5 iommu_faults
promise "nothing is wrong in the kernel's log" kernel_log_is_clean
