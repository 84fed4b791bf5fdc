package device

import (
	"context"
	"encoding/hex"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Violations lists the rules that drivers broke. It implements control.Provider.
func (n *NIC) Violations(context.Context) (list []control.Violation, err error) {
	err = n.shard.do(func(now falcon.Time) { list = n.shard.brokenRules(now) })
	return list, err
}

// ClearViolations forgets the rules that drivers broke, and returns what it forgot. It implements
// control.Provider.
func (n *NIC) ClearViolations(context.Context) (list []control.Violation, err error) {
	err = n.shard.do(func(now falcon.Time) {
		list = n.shard.brokenRules(now)
		for _, f := range n.shard.funcs.all {
			f.Violations().Clear()
		}
	})
	return list, err
}

// brokenRules lists the rules that drivers broke.
func (s *Shard) brokenRules(now falcon.Time) (list []control.Violation) {
	for _, f := range s.funcs.all {
		for _, v := range f.Violations().All() {
			list = append(list, control.Violation{
				Function: f.ID.String(), Clause: abi.Clause(v.Clause).String(), Ring: v.Ring.String(), Queue: v.Queue, Index: v.Index,
				Bytes: hex.EncodeToString(v.Bytes[:v.Length]), Count: v.Count, AgeMS: (now - v.At) / 1e6,
			})
		}
	}
	return list
}
