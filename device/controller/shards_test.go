package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// fake is a fake shard with some functions.
type fake struct {
	FunctionView
	ObjectView
	ids     []pfvf.ID
	gone    pfvf.ID
	most    int // most functions in one Ask
	now     int
	stopped bool
}

var errStopped = errors.New("stopped")

func (f *fake) Ask(ask func(View, vtime.Time)) error {
	if f.stopped {
		return errStopped
	}
	f.now = 0
	ask(View{Functions: f, Objects: f, Counters: f.Counters}, 7)
	f.most = max(f.most, f.now)
	return nil
}

func (f *fake) Present() []pfvf.ID { return f.ids }

func (f *fake) Find(id pfvf.ID) error {
	if id == f.gone {
		return errors.New("it went away meanwhile")
	}
	return nil
}

func (f *fake) QPs(id pfvf.ID) []control.QP {
	f.now++
	return []control.QP{{QPN: uint32(id)}}
}

func (f *fake) Counters() control.Counters {
	return control.Counters{"rdma.posted": uint64(len(f.ids))}
}

func numbers(from, n int) (ids []pfvf.ID) {
	for i := range n {
		ids = append(ids, pfvf.ID(from+i))
	}
	return ids
}

// TestFunctionsAreVisitedAFewPerAsk checks that functions are visited a few per Ask, on every
// shard, and that a function that goes away in between is left out.
func TestFunctionsAreVisitedAFewPerAsk(t *testing.T) {
	a, b := &fake{ids: numbers(1, 50)}, &fake{ids: numbers(100, 3), gone: 101}
	nic, err := config.Parse([]byte("nic: {host: 1}\nuplink: {backend: memory, address: 10.0.0.1/24}\n"))
	if err != nil {
		t.Fatal(err)
	}
	core, err := NewCore(CoreConfig{NIC: nic, Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	go core.Run(func() int64 { return 1 }, notes{})
	defer core.Halt()
	api := NewAPI(Config{Core: core, Shards: Shards{All: []Viewer{a, b}}, Counters: func(v control.Counters) { v["nic.warnings"] = 1 }})
	list, err := api.QPs(t.Context())
	if err != nil || len(list) != 52 || slices.ContainsFunc(list, func(q control.QP) bool { return q.QPN == 101 }) {
		t.Errorf("%d queue pairs, %v", len(list), err)
	}
	if a.most > functionsPerAsk {
		t.Errorf("%d functions in one call", a.most)
	}
	v, err := api.Counters(t.Context())
	if err != nil || v["rdma.posted"] != 53 || v["nic.warnings"] != 1 {
		t.Error(v, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := api.QPs(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.stopped = true
	if _, err := api.QPs(t.Context()); !errors.Is(err, errStopped) {
		t.Error(err)
	}
}
