package shard

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/thread"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// TestRosterModel compares a roster with a sorted list.
func TestRosterModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r roster[pfvf.ID]
		var want []pfvf.ID
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				id := pfvf.ID(rapid.Uint32Range(0, 2).Draw(t, "pf")<<12 | rapid.Uint32Range(0, 20).Draw(t, "vf"))
				if i, there := slices.BinarySearch(want, id); there {
					r.remove(id)
					want = slices.Delete(want, i, i+1)
				} else {
					r.put(id, &id)
					want = slices.Insert(want, i, id)
				}
			},
			"": func(t *rapid.T) {
				var all, ofPF []pfvf.ID
				for id := range r.all() {
					all = append(all, *id)
				}
				for id := range r.of(1 << 12) {
					ofPF = append(ofPF, *id)
				}
				if !slices.Equal(all, want) || r.len() != len(want) {
					t.Fatalf("%v, want %v", all, want)
				}
				if want := slices.DeleteFunc(slices.Clone(want), func(id pfvf.ID) bool { return id.PF() != 1 }); !slices.Equal(ofPF, want) {
					t.Fatalf("of PF 1 %v, want %v", ofPF, want)
				}
			},
		})
	})
}

// TestChangeOfOneFunction checks that disabling and enabling a VF, and removing and adding a port,
// need the same memory among ten functions as among two thousand: no list of all is copied.
func TestChangeOfOneFunction(t *testing.T) {
	measure := func(n int) (function, port uint64) {
		c, err := config.Parse([]byte("nic: {host: 1}\nuplink: {backend: memory, address: 10.0.0.1/24}\nfunctions:\n  - {pf: 0, vf_count: 2000}\n"))
		if err != nil {
			t.Fatal(err)
		}
		core, shards := newNIC(t, c, 1)
		s := shards[0]
		var decided controller.CoreOutput
		var out thread.Output
		set := func(i int, on bool) (taken uint64) {
			id, _ := pfvf.NewID(1, 0, uint32(1+i))
			done := false
			core.Change(id, func(_, c *config.Function) error {
				c.Tenant, c.Address, c.Enabled = 7, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), &on
				return nil
			}, func(err error) {
				if done = true; err != nil {
					t.Fatal(err)
				}
			})
			for !done {
				core.Step(1, &decided) // it has a list of all for peers, on a goroutine of its own
				taken += allocated(func() { s.Step(1, &thread.Input{}, &out) })
				out.Do()
			}
			return taken
		}
		for i := range n {
			set(i, true)
		}
		function = usual(func() uint64 { return set(5, false) + set(5, true) })
		ports := make([]*Port, n)
		for i := range n {
			id, _ := pfvf.NewID(1, 0, uint32(1+i))
			ports[i] = &Port{ID: id, Config: &config.Port{Name: "p"}}
			s.plain.join(ports[i])
		}
		port = usual(func() uint64 {
			return allocated(func() { s.plain.leave(ports[5]); s.plain.join(ports[5]) })
		})
		if s.funcs.there.len() != 1+n || s.plain.ports.len() != n {
			t.Fatalf("%d functions, %d ports", s.funcs.there.len(), s.plain.ports.len())
		}
		return function, port
	}
	few, fewPort := measure(10)
	many, manyPort := measure(2000)
	if many > 2*few {
		t.Errorf("a change of a function takes %d bytes among 10, %d among 2000", few, many)
	}
	if manyPort > 2*fewPort {
		t.Errorf("a change of a port takes %d bytes among 10, %d among 2000", fewPort, manyPort)
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// usual returns the median of what f returns: tables grow now and then.
func usual(f func() uint64) uint64 {
	var all [21]uint64
	for i := range all {
		all[i] = f()
	}
	slices.Sort(all[:])
	return all[len(all)/2]
}
