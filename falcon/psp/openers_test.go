package psp

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestOpenersFindWhatStaysWhileTheDatabaseChanges: Openers of several goroutines find every SPI that stays, and none that
// ended before the look-up, while the database issues, forgets, rotates and grows.
func TestOpenersFindWhatStaysWhileTheDatabaseChanges(t *testing.T) {
	d := NewRxSADB(testMaster(t), 1<<16, 1)
	stays, key, err := d.IssueTo(0, ClassFalcon, 7, 0)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := NewTransportTxSA(0, stays, key, 1)
	if err != nil {
		t.Fatal(err)
	}
	sealed := make([]byte, tx.Overhead()+20)
	if _, err := tx.Seal(1, NextHeaderFalcon, sealed, 20); err != nil {
		t.Fatal(err)
	}
	a := NewAssociation(AssociationConfig{SPI: stays, AnyPCID: true, Margin: 1e9})
	var stop atomic.Bool
	var done sync.WaitGroup
	for range 3 {
		o, g := d.Opener(0), a.Guard(0)
		done.Go(func() {
			b := make([]byte, len(sealed))
			for !stop.Load() {
				copy(b, sealed)
				h, _, _, err := o.Open(b)
				if err == nil {
					err = g.Check(h, fixed{})
				}
				if err != nil || h.Owner != 7 {
					t.Errorf("owner %d: %v", h.Owner, err)
					return
				}
			}
		})
	}
	var issued []uint32
	for i := range 3000 {
		spi, _, err := d.Issue(0, ClassFalcon)
		if err != nil {
			t.Fatal(err)
		}
		if issued = append(issued, spi); i%3 == 0 {
			d.Forget(issued[i/3])
		}
		a.AdvanceRemoteTime(uint64(i))
	}
	stop.Store(true)
	done.Wait()
	if n := d.Len(); n != 2001 {
		t.Errorf("%d SPIs are left, want 2001", n)
	}
	o := d.Opener(0)
	if _, _, _, err := o.Open(sealed); err != nil {
		t.Error(err)
	}
	d.Forget(stays)
	if _, _, _, err := o.Open(sealed); err != ErrUnknownSPI {
		t.Errorf("one that has ended, and was used last: %v", err)
	}
}
