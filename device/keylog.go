package device

import (
	"fmt"
	"io"
	"os"

	"github.com/falcon-vnic/vnic/falcon/cm"
)

// keyLog writes the keys of all SAs, so that a capture can be decrypted. It
// exists only where the configuration asks for it. The nil keyLog writes
// nothing.
type keyLog struct{ w io.Writer }

// openKeyLog opens the file to append to. One that others may read is refused.
func openKeyLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("psp.keylog: %w", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	} else if err == nil && st.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("%s has mode %04o, so others may read keys from it: chmod 600 it, or name another", path, st.Mode().Perm())
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("psp.keylog: %w", err)
	}
	return f, nil
}

// sa writes one line: direction (rx: the peer seals with it, tx: we do), SPI,
// PSP version, key, and what it is for.
func (l *keyLog) sa(direction string, k saKey, sa *cm.SA) {
	if l == nil {
		return
	}
	_, _ = fmt.Fprintf(l.w, "%s %08x %d %x peer=%d tenant=%d class=%v\n", direction, sa.SPI, sa.Version, sa.Key, k.peer, k.tenant, k.class)
}
