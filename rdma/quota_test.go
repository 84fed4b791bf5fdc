package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestQuotas fills a function with each kind of object. The quota is enforced, counted and
// returned, no kind takes another's room, and lowering a quota removes no object. (DEV-311,
// DEV-312)
func TestQuotas(t *testing.T) {
	const n = 3
	all := func(n int) (c verbs.Counts) {
		for k := range c {
			c[k] = n
		}
		return c
	}
	limits := verbs.Limits{Objects: all(n)}
	w := newWorld(t, worldConfig{limits: limits})
	h := w.hosts[0]
	f := h.fn
	pd, st := f.AllocPD()
	ok(t, st)
	_, list, levels := h.queueMem(1)
	cqn, st := f.CreateCQ(&abi.CreateCQ{Log2Entries: 1, Levels: levels, Pages: list})
	ok(t, st)
	kinds := []struct {
		kind    abi.Object
		have    int
		make    func() (uint32, abi.Status)
		destroy func(uint32) abi.Status
	}{
		{abi.ObjectPD, 1, f.AllocPD, f.DeallocPD},
		{abi.ObjectCQ, 1, func() (uint32, abi.Status) {
			return f.CreateCQ(&abi.CreateCQ{Log2Entries: 1, Levels: levels, Pages: list})
		}, f.DestroyCQ},
		{abi.ObjectMR, 0, func() (uint32, abi.Status) {
			key, _, st := f.RegMR(&abi.RegMR{PDN: pd, Length: 100, Pages: list, Levels: levels})
			return key, st
		}, f.DeregMR},
		{abi.ObjectMW, 0, func() (uint32, abi.Status) { return f.AllocMW(&abi.AllocMW{PDN: pd, Type: abi.MWType2}) }, f.DeallocMW},
		{abi.ObjectQP, 0, func() (uint32, abi.Status) {
			return f.CreateQP(&abi.CreateQP{
				PDN: pd, SendCQ: cqn, RecvCQ: cqn, Type: abi.QPTypeRC, SQLog2Entries: 1, RQLog2Entries: 1, SQLog2Stride: 6, RQLog2Stride: 5,
				SQLevels: levels, RQLevels: levels, SQPages: list, RQPages: list,
			})
		}, func(qpn uint32) abi.Status { return f.DestroyQP(w.now, qpn) }},
		{abi.ObjectSRQ, 0, func() (uint32, abi.Status) {
			return f.CreateSRQ(&abi.CreateSRQ{PDN: pd, Log2Entries: 1, Log2Stride: 5, Levels: levels, Pages: list})
		}, f.DestroySRQ},
		{abi.ObjectXRCD, 0, f.OpenXRCD, f.CloseXRCD},
		{abi.ObjectAH, 0, func() (uint32, abi.Status) {
			return f.CreateAH(w.now, &abi.CreateAH{PDN: pd, DGID: w.hosts[1].gid()})
		}, func(ahn uint32) abi.Status { return f.DestroyAH(w.now, ahn) }},
	}
	if len(kinds) != int(abi.NumObjects)-1 { // attachments to groups want RoCEv2: device/shard has them
		t.Fatalf("%d kinds are counted, %d tested", abi.NumObjects, len(kinds))
	}
	count := func(k abi.Object) int { return f.Counts()[k] }
	made := map[abi.Object][]uint32{}
	for range 2 { // everything full before anything goes, and once more
		for _, k := range kinds {
			for i := k.have; i < n; i++ {
				number, st := k.make()
				ok(t, st)
				made[k.kind] = append(made[k.kind], number)
			}
			if _, st := k.make(); st != abi.StatusNoResources || count(k.kind) != n {
				t.Errorf("%s: one too many: %v, counted %d", k.kind, st, count(k.kind))
			}
		}
		f.SetLimits(verbs.Limits{Objects: all(1)})
		for _, k := range kinds {
			if count(k.kind) != n {
				t.Errorf("%s: a lowered quota left %d", k.kind, count(k.kind))
			}
			ok(t, k.destroy(made[k.kind][0]))
			if _, st := k.make(); st != abi.StatusNoResources {
				t.Errorf("%s: above the lowered quota: %v", k.kind, st)
			}
			for _, number := range made[k.kind][1:] {
				ok(t, k.destroy(number))
			}
			made[k.kind] = nil
		}
		f.SetLimits(limits)
	}
	if got := f.Counts(); got != (verbs.Counts{abi.ObjectPD: 1, abi.ObjectCQ: 1}) {
		t.Errorf("left %+v", got)
	}
	for range n {
		_, st := kinds[len(kinds)-1].make()
		ok(t, st)
	}
	f.Close(w.now)
	if got := f.Counts(); got != (verbs.Counts{}) {
		t.Errorf("left after Close: %+v", got)
	}
}
