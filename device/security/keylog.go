package security

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/falcon-vnic/vnic/falcon/cm"
)

// KeyLog writes the keys of all SAs, so that a capture can be decrypted. It exists only if the
// configuration asks for it. A nil KeyLog writes nothing.
//
// A separate goroutine writes, so that a slow disk does not delay a shard. After the first error
// nothing more is written. Any goroutine may add lines.
type KeyLog struct {
	w      io.WriteCloser
	failed func(error)
	done   chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	waiting []byte // lines to be written
	end     bool
	broken  bool
}

// maxKeyLog bounds the bytes that wait to be written: some 100 000 keys.
const maxKeyLog = 16 << 20

// NewKeyLog returns a log that owns w. failed is called at most once, from another goroutine.
func NewKeyLog(w io.WriteCloser, failed func(error)) *KeyLog {
	l := &KeyLog{w: w, failed: failed, done: make(chan struct{})}
	l.changed = sync.NewCond(&l.mu)
	go l.run()
	return l
}

func (l *KeyLog) run() {
	defer close(l.done)
	for {
		b, overrun := l.next()
		if b == nil {
			return
		}
		_, err := l.w.Write(b)
		if err == nil && overrun {
			err = errors.New("the disk did not keep up")
		}
		if err != nil {
			l.failed(err)
			return
		}
	}
}

// next waits for lines; nil means the end. overrun reports that later lines were lost.
func (l *KeyLog) next() (b []byte, overrun bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) == 0 && !l.end {
		l.changed.Wait()
	}
	b, l.waiting = l.waiting, nil
	return b, l.broken
}

// sa queues one line: direction (rx: the peer seals with the key, tx: we do), SPI, PSP version,
// key, and use.
func (l *KeyLog) sa(direction string, u Use, sa *cm.SA) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken = l.broken || len(l.waiting) > maxKeyLog; l.broken {
		return
	}
	l.waiting = fmt.Appendf(l.waiting, "%s %08x %d %x peer=%d tenant=%d class=%v\n",
		direction, sa.SPI, sa.Version, sa.Key, u.Peer, u.Tenant, u.Class)
	l.changed.Signal()
}

// Close writes the remaining lines and closes the file.
func (l *KeyLog) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	l.end = true
	l.changed.Signal()
	l.mu.Unlock()
	<-l.done
	return l.w.Close()
}
