package rdma

import "github.com/falcon-vnic/vnic/rdma/verbs"

// EachQP calls f for every queue pair, in the order of their places.
func (f *Function) EachQP(call func(*verbs.QPInfo)) {
	f.Objects.EachQP(func(q *verbs.QP, info *verbs.QPInfo) {
		info.Rate = f.sched.throttle.Armed() && q.Queued.On() != nil
		call(info)
	})
}
