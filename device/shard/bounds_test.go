package shard

import (
	"io"
	"math"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/capture"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestAtOneTime checks the limits on captures and traced functions at one time, and that one that
// ends makes room.
func TestAtOneTime(t *testing.T) {
	v := newVirtualWith(t, 5, wire100us, manyVFs)
	s := v.shards[0]
	view := s.View()
	var captures []*capture.Capture
	begin := func() error {
		c, err := capture.New(io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		captures = append(captures, c)
		return view.StartCapture(&capture.Sink{To: c, Clear: true}, 0)
	}
	for i := range maxCaptures {
		if err := begin(); err != nil {
			t.Fatalf("capture %d: %v", i, err)
		}
	}
	if err := begin(); err == nil || !strings.Contains(err.Error(), "run already") {
		t.Errorf("one more: %v", err)
	}
	view.EndCapture(captures[1])
	if err := begin(); err != nil || len(s.capture.sinks) != maxCaptures {
		t.Errorf("in its place: %v, %d run", err, len(s.capture.sinks))
	}

	vf := func(n int) pfvf.ID {
		id, err := pfvf.NewID(uint32(s.cfg.NIC.Host), 0, uint32(n))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	for i := range maxTraces {
		if _, err := view.StartTrace(vf(i+1), 0); err != nil {
			t.Fatalf("trace %d: %v", i, err)
		}
	}
	if _, err := view.StartTrace(vf(maxTraces+1), 0); err == nil || !strings.Contains(err.Error(), "are traced already") {
		t.Errorf("one more: %v", err)
	}
	view.EndTrace(vf(2))
	if _, err := view.StartTrace(vf(maxTraces+1), 0); err != nil {
		t.Errorf("in its place: %v", err)
	}
}

// TestRateThatIsSeen checks that a PF sees the rate of a VF, up to the largest value that the field
// can hold.
func TestRateThatIsSeen(t *testing.T) {
	s := newVirtualWith(t, 5, wire100us, manyVFs).shards[0]
	id, err := pfvf.NewID(uint32(s.cfg.NIC.Host), 0, 20)
	if err != nil {
		t.Fatal(err)
	}
	const most = math.MaxUint32
	for rate, want := range map[uint64]uint32{
		0: 0, 25_000: 25_000, most - 1: most - 1, most: most, most + 1: most, 1 << 40: most,
	} {
		c := s.funcs.settings(id)
		c.MaxTxRate = rate
		s.funcs.absent[id] = c
		if r, st := (&seenVF{fs: s.funcs, id: id}).QueryVF(); st != abi.StatusOK || r.MaxTxRate != want {
			t.Errorf("a rate of %d: %d, %s", rate, r.MaxTxRate, st)
		}
	}
}
