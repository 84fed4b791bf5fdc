package device

import (
	"context"
	"crypto/x509"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestACertificateIsRenewedAtHalfItsLife: the NIC asks for another certificate when half of the life of
// the present one is over, not before, and asks again while nobody signs. The next certificate is
// renewed in the same way.
func TestACertificateIsRenewedAtHalfItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const life = 30 * 24 * time.Hour
		began := time.Now()
		var leaf atomic.Pointer[x509.Certificate]
		sign := func() { leaf.Store(&x509.Certificate{NotBefore: time.Now(), NotAfter: time.Now().Add(life)}) }
		sign()
		var mu sync.Mutex // of both
		var asked []time.Duration
		signs := true
		signing := func(on bool) { mu.Lock(); defer mu.Unlock(); signs = on }
		// after returns when it was asked so far, after a while.
		after := func(d time.Duration) []time.Duration {
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(asked)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go renewals(ctx, func() time.Duration { return untilHalf(leaf.Load()) }, nil, func(context.Context) {
			mu.Lock()
			defer mu.Unlock()
			if asked = append(asked, time.Since(began)); signs {
				sign()
			}
		})
		if at := after(life/2 - 2*time.Hour); len(at) != 0 {
			t.Fatalf("asked after %v", at)
		}
		if at := after(3 * time.Hour); len(at) != 1 {
			t.Fatalf("asked after %v", at)
		}
		signing(false)
		if at := after(life / 2); len(at) < 100 || at[len(at)-1]-at[len(at)-2] != renewPause {
			t.Fatalf("asked %d times, not each %v", len(at), renewPause)
		}
		signing(true)
		n := len(after(renewPause))
		if at := after(life/2 - 2*time.Hour); len(at) != n || time.Until(leaf.Load().NotAfter) < life/2 {
			t.Fatalf("asked %d times, then %d", n, len(at))
		}
	})
}
