package sys

// Trees are the requests of ioctl(2) that make or remove an entry by its name, a
// snapshot with all that is in it: nothing that a mount hides is hidden there, and
// Landlock is not asked; and the one by which a user locks what is encrypted on a whole
// file system, home included. Programs go on without what the file system lacks. See
// linux/fscrypt.h, linux/btrfs.h, fs/bcachefs/bcachefs_ioctl.h, fs/ocfs2/ocfs2_fs.h.
var Trees = [...]uint32{
	0x50009401, 0x50009417, // BTRFS_IOC_SNAP_CREATE, _V2
	0x5000940e, 0x50009418, // BTRFS_IOC_SUBVOL_CREATE, _V2
	0x5000940f, 0x5000943f, // BTRFS_IOC_SNAP_DESTROY, _V2
	0x4020bc10, 0x4020bc11, // BCH_IOCTL_SUBVOLUME_CREATE, _DESTROY
	0x40186f04, // OCFS2_IOC_REFLINK
	0xc0406618, // FS_IOC_REMOVE_ENCRYPTION_KEY
}

// Attributes are the requests of ioctl(2) that change what a file is, and need no
// right to write it: flags, project, generation, verity, encryption, read-only
// subvolumes, what they were received as, the modes of FAT, files of ext4 with extents,
// of F2FS with a fixed place or that nobody can write any more. What only moves blocks or
// shares equal ones is not among them. See linux/fs.h, linux/fsverity.h, linux/fscrypt.h,
// linux/btrfs.h, linux/msdos_fs.h, linux/f2fs.h, fs/ext4/ext4.h.
var Attributes = [...]uint32{
	0x40086602, 0x40046602, // FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS
	0x401c5820,             // FS_IOC_FSSETXATTR
	0x40087602, 0x40086604, // FS_IOC_SETVERSION, EXT4_IOC_SETVERSION
	0x40806685, // FS_IOC_ENABLE_VERITY
	0x800c6613, // FS_IOC_SET_ENCRYPTION_POLICY
	0x4008941a, // BTRFS_IOC_SUBVOL_SETFLAGS
	0xc0c89425, // BTRFS_IOC_SET_RECEIVED_SUBVOL
	0x00006609, // EXT4_IOC_MIGRATE
	0x4004f50d, // F2FS_IOC_SET_PIN_FILE
	0x8008f512, // F2FS_IOC_RELEASE_COMPRESS_BLOCKS
	0x8008f513, // F2FS_IOC_RESERVE_COMPRESS_BLOCKS
	0x40047211, // FAT_IOCTL_SET_ATTRIBUTES
}
