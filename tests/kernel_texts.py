"""Texts of files of the kernel, as real kernels write them; the comment at each says which.

"Recorded" texts are output of that kernel, some without lines that no reader uses. "Documented"
texts have the format and the names of the documentation, with figures of this project's own.
"""

from __future__ import annotations

# Recorded: Linux 6.18, version 1. A process with 64 MiB of its own and 8 MiB in /dev/shm.
MEMORY_STAT_V1 = """\
cache 8421376
rss 74149888
rss_huge 0
shmem 8388608
mapped_file 0
dirty 0
writeback 0
workingset_refault_anon 0
workingset_refault_file 8
swap 0
swapcached 0
pgpgin 24995
pgpgout 4836
pgfault 27272
pgmajfault 0
inactive_anon 82534400
active_anon 4096
inactive_file 0
active_file 32768
unevictable 0
hierarchical_memory_limit 9223372036854771712
hierarchical_memsw_limit 9223372036854771712
total_cache 8421376
total_rss 74149888
total_rss_huge 0
total_shmem 8388608
total_mapped_file 0
total_dirty 0
total_writeback 0
total_workingset_refault_anon 0
total_workingset_refault_file 8
total_swap 0
total_swapcached 0
total_pgpgin 24995
total_pgpgout 4836
total_pgfault 27272
total_pgmajfault 0
total_inactive_anon 82534400
total_active_anon 4096
total_inactive_file 0
total_active_file 32768
total_unevictable 0
"""
# Documented: Linux 3.10 (CentOS 7), version 1, Documentation/cgroups/memory.txt: without shmem.
MEMORY_STAT_V1_OLD = """\
cache 8421376
rss 74149888
rss_huge 0
mapped_file 0
swap 0
pgpgin 24995
pgpgout 4836
pgfault 27272
pgmajfault 0
inactive_anon 82534400
active_anon 4096
inactive_file 0
active_file 32768
unevictable 0
hierarchical_memory_limit 9223372036854771712
hierarchical_memsw_limit 9223372036854771712
total_cache 8421376
total_rss 74149888
total_rss_huge 0
total_mapped_file 0
total_swap 0
total_inactive_file 0
total_active_file 32768
"""
# Documented: Linux 5.15 (Ubuntu 22.04), version 2, Documentation/admin-guide/cgroup-v2.rst.
MEMORY_STAT_V2 = """\
anon 74149888
file 8421376
kernel_stack 49152
pagetables 286720
percpu 0
sock 0
shmem 8388608
file_mapped 0
file_dirty 0
file_writeback 0
swapcached 0
anon_thp 0
file_thp 0
shmem_thp 0
inactive_anon 82534400
active_anon 4096
inactive_file 0
active_file 32768
unevictable 0
slab_reclaimable 119232
slab_unreclaimable 180944
slab 300176
workingset_refault_anon 0
workingset_refault_file 8
workingset_activate_anon 0
workingset_activate_file 0
workingset_restore_anon 0
workingset_restore_file 0
workingset_nodereclaim 0
pgfault 27272
pgmajfault 0
pgrefill 0
pgscan 0
pgsteal 0
pgactivate 0
pgdeactivate 0
pglazyfree 0
pglazyfreed 0
thp_fault_alloc 0
thp_collapse_alloc 0
"""
# Recorded: Linux 6.18, /proc/self/mounts of a host with both versions.
MOUNTS_HYBRID = """\
proc /proc proc rw,relatime 0 0
tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0
cgroup /sys/fs/cgroup/cpuacct cgroup rw,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,freezer 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
# Documented: systemd 237 (Ubuntu 18.04) mounts cpu and cpuacct together.
MOUNTS_V1 = """\
tmpfs /sys/fs/cgroup tmpfs ro,nosuid,nodev,noexec,mode=755 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,nosuid,nodev,noexec,relatime,xattr,name=systemd 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,nodev,noexec,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,nosuid,nodev,noexec,relatime,memory 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,nosuid,nodev,noexec,relatime,freezer 0 0
"""
# Documented: systemd 249 (Ubuntu 22.04).
MOUNTS_V2 = """\
proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0
cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate,memory_recursiveprot 0 0
"""
# Documented: cgroups(7), a job of gpucoord on a host with both versions.
CGROUP_HYBRID = """\
9:name=systemd:/
8:pids:/
6:freezer:/
5:devices:/
4:memory:/gpucoord/1-job-7-1
2:cpuacct:/
1:cpu:/
0::/gpucoord/1-job-7-1
"""
# Documented: cgroups(7), version 2 only, and version 1 with joined controllers.
CGROUP_V2 = "0::/user.slice/user-1000.slice/session-3.scope\n"
CGROUP_V1 = "4:cpu,cpuacct:/system.slice/gpucoord.service\n3:memory:/system.slice/a:b.service\n"
# Documented: proc(5), /proc/PID/stat of a program whose name a user chose.
STAT_ODD_NAME = (
    b"4242 (a) R 1 2 (b c) S 4200 4242 4200 34816 4242 4194304 112 0 0 0 3 1 0 0 20 0 1 0 98765 "
    b"3133440 445 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
)
# Documented: proc(5), /proc/locks: a POSIX lock, a held and a waiting flock, a lock of an open
# file (pid -1), and a lease.
LOCKS = """\
1: POSIX  ADVISORY  READ 25444 fe:00:2253805 128 128
2: FLOCK  ADVISORY  WRITE 300 fe:00:77 0 EOF
2: -> FLOCK  ADVISORY  WRITE 301 fe:00:77 0 EOF
3: FLOCK  ADVISORY  READ 302 00:1b:78 0 EOF
4: OFDLCK ADVISORY  WRITE -1 fe:00:79 0 0
5: LEASE  ACTIVE    READ 303 fe:00:80 0 EOF
"""
# Documented: proc(5), /proc/self/mountinfo: optional fields, and spaces as \040.
MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,resuid=65534,resgid=65534
30 25 0:27 / /dev/shm rw,relatime shared:4 master:2 - tmpfs tmpfs rw,size=24684096k
41 27 0:55 / /mnt/a\\040-\\040b rw,relatime - nfs4 server:/a\\040-\\040b rw,vers=4.2
"""
# Documented: Documentation/admin-guide/iostats.rst, Linux 5.15: 17 figures; a name with a slash.
DISKSTATS = """\
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 259       0 nvme0n1 10 0 2000 5 20 0 4000 9 0 8 14 0 0 0 0 0 0
 104       0 cciss/c0d0 1 0 100 5 2 0 300 9 0 8 14 0 0 0 0 0 0
 253       0 dm-0 10 0 2000 5 20 0 4000 9 0 8 14 0 0 0 0 0 0
"""
# Documented: Documentation/accounting/psi.rst. Before Linux 5.13, cpu has no line "full".
PRESSURE = """\
some avg10=12.50 avg60=0.00 avg300=0.00 total=221199542
full avg10=3.25 avg60=0.00 avg300=0.00 total=214901058
"""
PRESSURE_CPU_OLD = "some avg10=1.50 avg60=0.00 avg300=0.00 total=8322141\n"
# Documented: proc(5), /proc/PID/status in a namespace of pids, as Linux 6.18 writes it, cut. A
# newline in the name of a program is written as two characters.
STATUS = """\
Name:\ta\\nUid:\t0
Umask:\t0022
State:\tS (sleeping)
Tgid:\t32316
Ngid:\t0
Pid:\t32316
PPid:\t32311
TracerPid:\t0
Uid:\t1000\t1000\t1000\t1000
Gid:\t1000\t1000\t1000\t1000
FDSize:\t256
NStgid:\t32316\t7
NSpid:\t32316\t7
NSpgid:\t32311\t7
NSsid:\t17951\t0
"""
# Documented: user_namespaces(7): of the host, and with the ranges of a rootless container.
UID_MAP_HOST = "         0          0 4294967295\n"
UID_MAP_ROOTLESS = """\
         0       1000          1
         1     100000      65536
"""
# Recorded: Linux 6.18. Pages: size, resident, shared, text, unused, data, unused.
STATM = "765 433 405 5 0 123 0\n"
# Documented: proc(5), as Linux 6.18 writes it: two that listen, and a connection.
NET_TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 770429 1 000000004bbd2851 100 0 0 10 0
   1: 00000000:07E8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1146 1 00000000efacf81c 100 0 0 10 0
   2: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1001        0 770500 1 000000007c1c3b2a 20 4 30 10 -1
"""  # noqa: E501 - as the kernel writes it
