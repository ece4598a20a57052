# Programs under the preload library on a real DAX file system: ext4 on NVDIMMs, a power cut, a full file system.
#: nvdimm fast 192M
#: nvdimm small 64M
#: modules nfit nd_pmem ext4
#: tools mkfs.ext4 ndctl
#: headwater
#: built libheadwater_preload.so
#: built preload-files
#: built preload-truncation
#: built preload-dax
#: memory 768
#: reboots
#: timeout 300

mount_it() { mkdir -p "$2" && mount -t ext4 -o dax=always "$1" "$2"; }
under_library() { HEADWATER_PRELOAD_REPORT=/tmp/report headwater run --mover -- "$@"; }
# counted NAME LEAST: the counter of the last report has at least this value.
counted() { [ "$(awk -v name="$1" '$1 == name { value = $2 } END { print value + 0 }' /tmp/report)" -ge "$2" ]; }
only_synchronous() { cat /tmp/report; counted maps_sync "$1" && counted mapped_writes 1 && ! counted maps_plain 1; }
fresh() { rm -f /tmp/report; under_library "$@"; }

if ! host 'test -e cut' >/dev/null 2>&1; then
  promise "two modules of persistent memory" until_true 10 test -b /dev/pmem1
  dax_mode() { for n in 0 1; do ndctl create-namespace -f -e namespace$n.0 -m fsdax -M mem || return; done; }
  promise "their namespaces get the pages that DAX needs" dax_mode
  promise "mkfs.ext4 on the first" mkfs.ext4 -q -b 4096 /dev/pmem0
  promise "mkfs.ext4 on the second" mkfs.ext4 -q -b 4096 -m 0 /dev/pmem1
  promise "mount with DAX" mount_it /dev/pmem0 /mnt/dax
  promise "mount with DAX, the small one" mount_it /dev/pmem1 /mnt/small
  promise "files are as the kernel leaves them" fresh preload-files /mnt/dax/file 7
  promise "by mappings with MAP_SYNC" only_synchronous 20
  promise "a file that is shortened ends no program" fresh preload-truncation /mnt/dax/shortened 30
  promise "by mappings with MAP_SYNC" only_synchronous 1
  promise "a full file system is an error, not a signal" fresh preload-dax full /mnt/small
  promise "by mappings with MAP_SYNC" only_synchronous 1
  promise "and the kernel repeated what found no space" counted kernel_faults 1
  promise "the file systems can be unmounted afterwards" umount /mnt/small
  rm -f /mnt/dax/file* /mnt/dax/shortened*; sync
  promise "a static program is refused" refused headwater run --mover -- busybox true
  promise "a write without fsync" fresh preload-dax write /mnt/dax/survivor
  promise "by a mapping with MAP_SYNC" only_synchronous 1
  [ $failed = 0 ] || finish
  host 'touch cut'
  echo b >/proc/sysrq-trigger; sleep 60
fi

promise "the file system mounts after the power cut" mount_it /dev/pmem0 /mnt/dax
promise "the write survived it" preload-dax check /mnt/dax/survivor
promise "nothing is wrong in the kernel's log" kernel_log_is_clean
