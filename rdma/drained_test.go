package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// holding holds every completion back until one that must not wait releases them.
type holding struct{}

func (holding) Work(uint32, abi.Opcode) abi.WCStatus { return abi.WCSuccess }
func (holding) Access() bool                         { return false }
func (holding) Key(uint32) bool                      { return false }
func (holding) Stuck(uint32) bool                    { return false }
func (holding) Hold(uint32) bool                     { return true }

// TestDrainedBehindCompletions: when a driver gets the event that its send queue has drained, it
// finds the completions of all started requests, also those that were held back by Faults.
// (DEV-908)
func TestDrainedBehindCompletions(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	h := p.hosts[0]
	h.fn.UseFeatures(abi.FeatureExtendedVerbs)
	h.fn.UseFaults(holding{})
	for range 3 {
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 64))
	}
	p.settle(1e8)
	if _, any := p.a.send.poll(); any {
		t.Fatal("a completion was not kept back: the test tests nothing")
	}
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState | abi.QPAttrSQDNotify, State: abi.QPStateSQD, SQDNotify: 1})
	p.settle(1e6)
	if len(h.async) != 1 || h.async[0].typ != abi.EventSQDrained {
		t.Fatalf("events %+v", h.async)
	}
	for i := range 3 {
		if x, any := p.a.send.poll(); !any || x.Status != abi.WCSuccess {
			t.Errorf("completion %d: %v %s", i, any, x.Status)
		}
	}
}
