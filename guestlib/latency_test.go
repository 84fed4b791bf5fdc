package guestlib

import (
	"errors"
	"sync"
	"testing"
)

func TestLatencyIsMeasuredWhileCommandsGoOn(t *testing.T) {
	nic, url := startNIC(t, nil)
	d := openDevice(t, url)
	if path, err := d.Path(); path != "unix" || err != nil {
		t.Errorf("path %q, %v", path, err)
	}
	ctx := testContext(t)
	// 100 commands pass the end of the admin queue, and so a change of phase; others go on
	// meanwhile.
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			l, err := d.MeasureLatency(ctx, 100)
			if err != nil || l.Samples != 100 || l.DoorbellUS <= 0 || l.WakeUS < 0 {
				t.Errorf("%+v, %v", l, err)
			}
		})
		wg.Go(func() {
			for range 100 {
				if _, err := d.Query(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := len(d.admin.Load().slots); n != cap(d.admin.Load().slots) {
		t.Errorf("%d of %d slots are free afterwards", n, cap(d.admin.Load().slots))
	}
	for _, n := range []int{0, -1, 1<<20 + 1} {
		if _, err := d.MeasureLatency(ctx, n); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d samples: %v", n, err)
		}
	}
	nic.Close()
	<-d.Done()
	if _, err := d.MeasureLatency(ctx, 1); !errors.Is(err, ErrDeviceLost) {
		t.Errorf("of a device that is gone: %v", err)
	}
}
