package guestlib

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Counter is what a function counts; its String is the name that Linux has for it.
type Counter = abi.Counter

// Counters asks the device what the function counted since it was enabled: a number for each
// Counter, which is the index.
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

// Clock reads the device's clock, by which completions have their Timestamp.
func (d *Device) Clock(ctx context.Context) (time.Duration, error) {
	v, err := registers{d.s.Load()}.read(ctx, abi.RegClock, 8)
	return time.Duration(v), err
}
