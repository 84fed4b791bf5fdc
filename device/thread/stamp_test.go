package thread

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// slowUplink takes a microsecond for every Read; slowPorts take a millisecond.
type slowUplink struct {
	tap.Port
	now *int64
}

func (u *slowUplink) Read(bufs [][]byte, got []tap.Received) (int, error) {
	*u.now += 1e3
	return u.Port.Read(bufs, got)
}

type slowPorts struct {
	*idle
	now *int64
}

func (p *slowPorts) Read() bool {
	*p.now += 1e6
	return false
}

// stamped records the times of its Steps.
type stamped struct {
	*idle
	at []vtime.Time
}

func (s *stamped) Step(now vtime.Time, in *Input, out *Output) {
	s.at = append(s.at, now)
	s.idle.Step(now, in, out)
}

// TestStamp checks that frames of the uplink get the time at which they were read, before any other
// work: Falcon's t2 and t4 must not include that (Falcon §10.1).
func TestStamp(t *testing.T) {
	l, far, now := newThreadOn(t, config.Impair{RX: config.NoImpairment(), TX: config.NoImpairment()})
	s := &stamped{idle: &idle{vtime.Never}}
	l.Shard, l.Ports, l.Uplink = s, &slowPorts{s.idle, now}, &slowUplink{l.Uplink, now}
	if n, err := far.Write([][]byte{udpFrame(100)}, false); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	begin := *now
	l.Turn()
	l.Turn()
	want := []vtime.Time{begin + 1e3, begin + 1e3 + 1e6 + 1e3}
	if !slices.Equal(s.at, want) {
		t.Errorf("Steps at %v, want %v", s.at, want)
	}
}
