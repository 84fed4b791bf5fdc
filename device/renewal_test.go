package device

import (
	"context"
	"crypto/x509"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestACertificateIsRenewedAtHalfItsLife: another certificate is asked for when half of the life of the
// present one is over, not before; while nobody signs, again and again; and of the next one likewise.
func TestACertificateIsRenewedAtHalfItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const life = 30 * 24 * time.Hour
		began := time.Now()
		var leaf atomic.Pointer[x509.Certificate]
		sign := func() { leaf.Store(&x509.Certificate{NotBefore: time.Now(), NotAfter: time.Now().Add(life)}) }
		sign()
		var asked []time.Duration
		signs := true
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go renewals(ctx, leaf.Load, func(context.Context) {
			if asked = append(asked, time.Since(began)); signs {
				sign()
			}
		})
		time.Sleep(life/2 - 2*time.Hour)
		synctest.Wait()
		if len(asked) != 0 {
			t.Fatalf("asked after %v", asked)
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if len(asked) != 1 {
			t.Fatalf("asked after %v", asked)
		}
		signs = false
		time.Sleep(life / 2)
		synctest.Wait()
		if n := len(asked); n < 100 || asked[n-1]-asked[n-2] != renewPause {
			t.Fatalf("asked %d times, last after %v", n, asked[n-1]-asked[n-2])
		}
		signs = true
		time.Sleep(renewPause)
		synctest.Wait()
		n := len(asked)
		time.Sleep(life/2 - 2*time.Hour)
		synctest.Wait()
		if len(asked) != n || time.Until(leaf.Load().NotAfter) < life/2 {
			t.Fatalf("asked %d times, then %d", n, len(asked))
		}
	})
}
