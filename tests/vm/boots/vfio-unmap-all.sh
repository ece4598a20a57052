# An unmap of everything: QEMU sends it when a virtual IOMMU whose translation covers all addresses is bypassed. Debian's kernel
# has no driver of that IOMMU, so the script sets it by its registers (virtio 1.2 sections 4.1.4 and 5.13.4).
#: host serve disk --vfio-user disk.sock --capacity 256MiB
#: vfio-user disk.sock
#: iommu virtio-iommu-pci
#: modules nvme
#: tools nvme

at=$(grep -l 0x1057 /sys/bus/pci/devices/*/device) && at=$(dirname "$at")
nvme=$(basename "$(readlink -f /sys/class/nvme/nvme0/device)")
# set OFFSET BITS VALUE: stores to the IOMMU's fourth base address register.
set_register() { devmem $(($(sed -n 5p "$at/resource" | cut -d' ' -f1) + $1)) "$2" "$3"; }
# The features VERSION_1 and BYPASS_CONFIG, and the status that accepts them.
negotiated() {
  echo 1 >"$at/enable" || return
  for status in 0 1 3; do set_register 0x14 8 $status; done
  set_register 0x08 32 0; set_register 0x0c 32 0x40; set_register 0x08 32 1; set_register 0x0c 32 1
  set_register 0x14 8 0x0b; set_register 0x14 8 0x0f
}
bypass() { set_register $((0x2000 + 36)) 8 "$1"; }
unmaps() { [ "$(host 'grep -c "unmapped all memory at once" disk.log || true')" = "$1" ]; }

promise "the stock driver takes the device" until_true 20 test -e /dev/nvme0
promise "the driver lets it go" sh -c "echo $nvme >/sys/bus/pci/drivers/nvme/unbind"
promise "the IOMMU accepts its features" negotiated
promise "the IOMMU translates everything" bypass 0
promise "nothing was unmapped at once yet" unmaps 0
promise "and is bypassed again" bypass 1
promise "which unmaps everything at once" until_true 10 unmaps 1
again() { bypass 0 && bypass 1 && until_true 10 unmaps 2; }
promise "as often as it happens" again
promise "the driver takes the device again" sh -c "echo $nvme >/sys/bus/pci/drivers/nvme/bind"
stored() { until_true 20 test -c /dev/ng0n1 && nvme id-ctrl /dev/nvme0 >/tmp/id && grep -q Headwater /tmp/id; }
promise "and it works" stored
promise "nothing is wrong in the kernel's log" kernel_log_is_clean
