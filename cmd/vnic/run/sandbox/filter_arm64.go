package sandbox

import (
	"math"

	"golang.org/x/sys/unix"
)

const (
	auditArch    = unix.AUDIT_ARCH_AARCH64
	otherNumbers = math.MaxUint32 // none
)

var deniedHere []uint32
