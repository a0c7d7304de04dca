"""Records of a run as they are written: closed segments on disk, and stretches of steps told as one."""
