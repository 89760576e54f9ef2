package sys

// Trees are the requests of ioctl(2) that make or remove an entry by its name, a
// snapshot with all that is in it: nothing that a mount hides is hidden there, and
// Landlock is not asked. Programs go on without what the file system lacks. See
// linux/btrfs.h, fs/bcachefs/bcachefs_ioctl.h, fs/ocfs2/ocfs2_fs.h.
var Trees = [...]uint32{
	0x50009401, 0x50009417, // BTRFS_IOC_SNAP_CREATE, _V2
	0x5000940e, 0x50009418, // BTRFS_IOC_SUBVOL_CREATE, _V2
	0x5000940f, 0x5000943f, // BTRFS_IOC_SNAP_DESTROY, _V2
	0x4020bc10, 0x4020bc11, // BCH_IOCTL_SUBVOLUME_CREATE, _DESTROY
	0x40186f04, // OCFS2_IOC_REFLINK
}
