# A buffer pool whose memory a PCI device reaches through an IOMMU: mapped, used, unmapped, and no fault but the last one.
#: iommu
#: kernel intel_iommu=on iommu=nopt
#: device edu,dma_mask=0xffffffff
#: modules vfio_iommu_type1 vfio-pci
#: example vfio_pool

edu() { basename $(dirname $(grep -l 0x11e8 /sys/bus/pci/devices/*/device)); }
DEVICE=$(edu)

promise "the device stands behind an IOMMU, alone in a group" give $DEVICE vfio-pci
promise "a pool's chunks are mapped, a device copies between their buffers, all is unmapped" vfio_pool $DEVICE
sed 's/^/        | /' /tmp/said
promise "the IOMMU saw no address that was not mapped" refused faults
promise "a container can be opened again, and the device reads what was unmapped" vfio_pool $DEVICE stale
promise "which the IOMMU refuses, and the kernel tells" until_true 5 faults
promise "nothing is wrong in the kernel's log" kernel_is_content
