package rdma

import (
	"reflect"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestQuotas fills a function with each kind of object: the quota is kept, counted and given back,
// no kind takes room of another, and a lowered quota takes nothing away. (DEV-311, DEV-312)
func TestQuotas(t *testing.T) {
	const n = 3
	limits := verbs.Limits{PDs: n, MRs: n, MWs: n, CQs: n, QPs: n, SRQs: n, XRCDs: n, AHs: n}
	w := newWorld(t, worldConfig{limits: limits})
	h := w.hosts[0]
	f := h.fn
	pd, st := f.AllocPD()
	ok(t, st)
	_, list, levels := h.queueMem(1)
	cqn, st := f.CreateCQ(&abi.CreateCQ{Log2Entries: 1, Levels: levels, Pages: list})
	ok(t, st)
	kinds := []struct {
		name    string // field of Counts
		have    int
		make    func() (uint32, abi.Status)
		destroy func(uint32) abi.Status
	}{
		{"PDs", 1, f.AllocPD, f.DeallocPD},
		{"CQs", 1, func() (uint32, abi.Status) {
			return f.CreateCQ(&abi.CreateCQ{Log2Entries: 1, Levels: levels, Pages: list})
		}, f.DestroyCQ},
		{"MRs", 0, func() (uint32, abi.Status) {
			key, _, st := f.RegMR(&abi.RegMR{PDN: pd, Length: 100, Pages: list, Levels: levels})
			return key, st
		}, f.DeregMR},
		{"MWs", 0, func() (uint32, abi.Status) { return f.AllocMW(&abi.AllocMW{PDN: pd, Type: abi.MWType2}) }, f.DeallocMW},
		{"QPs", 0, func() (uint32, abi.Status) {
			return f.CreateQP(&abi.CreateQP{
				PDN: pd, SendCQ: cqn, RecvCQ: cqn, Type: abi.QPTypeRC, SQLog2Entries: 1, RQLog2Entries: 1, SQLog2Stride: 6, RQLog2Stride: 5,
				SQLevels: levels, RQLevels: levels, SQPages: list, RQPages: list,
			})
		}, func(qpn uint32) abi.Status { return f.DestroyQP(w.now, qpn) }},
		{"SRQs", 0, func() (uint32, abi.Status) {
			return f.CreateSRQ(&abi.CreateSRQ{PDN: pd, Log2Entries: 1, Log2Stride: 5, Levels: levels, Pages: list})
		}, f.DestroySRQ},
		{"XRCDs", 0, f.OpenXRCD, f.CloseXRCD},
		{"AHs", 0, func() (uint32, abi.Status) {
			return f.CreateAH(w.now, &abi.CreateAH{PDN: pd, DGID: w.hosts[1].gid()})
		}, func(ahn uint32) abi.Status { return f.DestroyAH(w.now, ahn) }},
	}
	if fields := reflect.TypeFor[verbs.Counts]().NumField(); fields != len(kinds) {
		t.Fatalf("%d kinds are counted, %d tested", fields, len(kinds))
	}
	count := func(name string) int { return int(reflect.ValueOf(f.Counts()).FieldByName(name).Int()) }
	made := map[string][]uint32{}
	for range 2 { // everything full before anything goes, and once more
		for _, k := range kinds {
			for i := k.have; i < n; i++ {
				number, st := k.make()
				ok(t, st)
				made[k.name] = append(made[k.name], number)
			}
			if _, st := k.make(); st != abi.StatusNoResources || count(k.name) != n {
				t.Errorf("%s: one too many: %v, counted %d", k.name, st, count(k.name))
			}
		}
		f.SetLimits(verbs.Limits{PDs: 1, MRs: 1, MWs: 1, CQs: 1, QPs: 1, SRQs: 1, XRCDs: 1, AHs: 1})
		for _, k := range kinds {
			if count(k.name) != n {
				t.Errorf("%s: a lowered quota left %d", k.name, count(k.name))
			}
			ok(t, k.destroy(made[k.name][0]))
			if _, st := k.make(); st != abi.StatusNoResources {
				t.Errorf("%s: above the lowered quota: %v", k.name, st)
			}
			for _, number := range made[k.name][1:] {
				ok(t, k.destroy(number))
			}
			made[k.name] = nil
		}
		f.SetLimits(limits)
	}
	if got := f.Counts(); got != (verbs.Counts{PDs: 1, CQs: 1}) {
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
