package guestlib

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Counter is a counter of a function. Its String is the counter's name in Linux.
type Counter = abi.Counter

// Counters returns the function's counters since it was enabled. The index is the Counter.
func (d *Device) Counters(ctx context.Context) (list []uint64, err error) {
	for {
		var r abi.Counters
		if err := d.admin.Load().do(ctx, abi.AdminOpQueryCounters, &abi.QueryCounters{First: abi.Counter(len(list))}, &r, nil); err != nil {
			return nil, err
		}
		for b := r.Values[:]; len(b) > 0; b = b[8:] {
			if list = append(list, binary.LittleEndian.Uint64(b)); len(list) == int(r.Total) {
				return list, nil
			}
		}
	}
}

// Clock reads the device's clock, which gives completions their Timestamp.
func (d *Device) Clock(ctx context.Context) (time.Duration, error) {
	v, err := registers{d.s.Load()}.read(ctx, abi.RegClock, 8)
	return time.Duration(v), err
}
