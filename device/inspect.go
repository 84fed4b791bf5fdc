package device

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// What the control API shows of the shard's insides. Answers that grow with the
// guests' objects are gathered function by function, each in a call of its own,
// so that traffic goes on between them.

// eachFunction calls f on the shard's thread for every function that is there,
// each time in a call of its own.
func (n *NIC) eachFunction(ctx context.Context, f func(*function)) error {
	var ids []pfvf.ID
	if err := n.shard.do(func(falcon.Time) {
		for _, f := range n.shard.funcs.all {
			ids = append(ids, f.ID)
		}
	}); err != nil {
		return err
	}
	for part := range slices.Chunk(ids, functionsPerCall) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := n.shard.do(func(falcon.Time) {
			for _, id := range part {
				if fn := n.shard.funcs.byID[id]; fn != nil {
					f(fn)
				}
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// functionsPerCall bounds how long the shard is asked at one time.
const functionsPerCall = 8

// QPs describes every queue pair.
func (n *NIC) QPs(ctx context.Context) (list []control.QP, err error) {
	err = n.eachFunction(ctx, func(f *function) {
		v := f.Verbs()
		if v == nil {
			return
		}
		v.EachQP(func(q *rdma.QPInfo) {
			v := control.QP{
				Function: f.ID.String(), QPN: q.Number, Type: q.Type.String(), State: q.State.String(), PeerQPN: q.Peer,
				SendCQ: q.SendCQ, RecvCQ: q.RecvCQ, Posted: q.Posted, InFlight: q.InFlight, Packets: q.Pushes + q.Pulls, Reads: q.Reads,
				PathMTU: q.PathMTU, RetryCnt: q.RetryCnt, RNRRetry: q.RNRRetry, MaxAtomic: q.MaxRdAtomic,
			}
			if q.PeerGID != ([16]byte{}) {
				v.Peer = netip.AddrFrom16(q.PeerGID).Unmap().String()
			}
			switch {
			case q.CreditWait:
				v.Waits = "credit"
			case q.Rate:
				v.Waits = "rate"
			}
			list = append(list, v)
		})
	})
	return list, err
}

// Queues describes every ring in guests' memory.
func (n *NIC) Queues(ctx context.Context) (list []control.Queue, err error) {
	err = n.eachFunction(ctx, func(f *function) {
		v := f.Verbs()
		if v == nil {
			return
		}
		id := f.ID.String()
		list = append(list, adminQueue(f))
		v.EachQueue(func(q *verbs.QueueInfo) {
			v := control.Queue{
				Function: id, Kind: string(q.Kind), Number: q.Number, Entries: q.Entries,
				Producer: q.Producer, Consumer: q.Consumer, Level: q.Producer - q.Consumer,
			}
			switch {
			case q.Overflowed:
				v.Note = "overflowed"
			case q.Polled:
				v.Note = "polled"
			case q.Armed:
				v.Note = "armed"
			}
			list = append(list, v)
		})
	})
	return list, err
}

func adminQueue(f *function) control.Queue {
	v := control.Queue{Function: f.ID.String(), Kind: "admin-sq"}
	v.Entries, v.Producer, v.Consumer, v.Level = f.AdminQueue()
	return v
}

// Credits describes the credit tree: NIC, host, functions and their connections.
func (n *NIC) Credits(ctx context.Context) (list []control.CreditNode, err error) {
	err = n.shard.do(func(falcon.Time) {
		host := n.shard.funcs.host
		list = append(list, creditNode("nic", n.cfg.NIC.Name, host.Parent()), creditNode("host", fmt.Sprintf("h%d", n.cfg.NIC.Host), host))
	})
	if err != nil {
		return nil, err
	}
	err = n.eachFunction(ctx, func(f *function) {
		list = append(list, creditNode("function", f.ID.String(), f.Credits))
		for _, id := range f.conns.IDs() {
			if c := n.shard.table.ByID(id); c != nil && c.Credits != nil {
				list = append(list, creditNode("connection", fmt.Sprintf("%s/%d", f.ID, id), c.Credits))
			}
		}
	})
	return list, err
}

func creditNode(level, name string, n *credit.Node) control.CreditNode {
	return control.CreditNode{
		Level: level, Name: name, Limit: counts(n.Limit()), Guarantee: counts(n.Guaranteed()), InUse: counts(n.InUse()), Charged: counts(n.Charged()),
		Refused: n.Refusals(), Underflows: n.Underflows(),
	}
}

// counts names the numbers that say something: neither 0 nor without limit.
func counts(c credit.Cost) map[string]uint32 {
	m := map[string]uint32{}
	for i, v := range c {
		if v != 0 && v != credit.Unlimited {
			m[credit.Counter(i).String()] = v
		}
	}
	return m
}

// Keys describes the security associations. No answer holds a key.
func (n *NIC) Keys(context.Context) (list []control.Key, err error) {
	err = n.shard.do(func(falcon.Time) {
		s := n.shard
		for _, k := range s.keys.List() {
			list = append(list, control.Key{
				Direction: "rx", Peer: k.Use.Peer, Tenant: k.Use.Tenant, Class: k.Use.Class.String(),
				SPI: k.SPI, Previous: k.Previous, Generation: k.Generation,
			})
		}
		for _, k := range s.txSAs.List() {
			list = append(list, control.Key{
				Direction: "tx", Peer: k.Use.Peer, Tenant: k.Use.Tenant, Class: k.Use.Class.String(),
				SPI: k.SPI, Packets: k.Packets, RekeyDue: k.RekeyDue,
			})
		}
	})
	return list, err
}
