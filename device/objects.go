package device

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// command carries out an admin command and writes its result, which counts only with StatusOK.
type command func(f *function, now falcon.Time, cmd *abi.AdminCmd, result []byte) abi.Status

// reads is a pointer to parameters P.
type reads[P any] interface {
	*P
	Unmarshal(b []byte)
}

// does makes a command of what takes parameters P and has no result.
func does[P any, R reads[P]](do func(f *function, now falcon.Time, c *P) abi.Status) command {
	return func(f *function, now falcon.Time, cmd *abi.AdminCmd, _ []byte) abi.Status {
		var c P
		R(&c).Unmarshal(cmd.Params[:])
		return do(f, now, &c)
	}
}

// gives makes a command of what takes parameters P and has a result.
func gives[P any, V interface{ Marshal(b []byte) }, R reads[P]](do func(f *function, now falcon.Time, c *P) (V, abi.Status)) command {
	return func(f *function, now falcon.Time, cmd *abi.AdminCmd, result []byte) abi.Status {
		var c P
		R(&c).Unmarshal(cmd.Params[:])
		v, st := do(f, now, &c)
		if st == abi.StatusOK {
			v.Marshal(result)
		}
		return st
	}
}

// nothing are the parameters of a command that has none.
type nothing struct{}

// Unmarshal reads nothing.
func (*nothing) Unmarshal([]byte) {}

// objectCommands are those for the function itself and its verbs objects, by opcode. RegMR and
// ReregMR are only begun here: readPages completes them.
var objectCommands = map[abi.AdminOp]command{
	abi.AdminOpQueryDevice: gives(func(f *function, _ falcon.Time, _ *nothing) (*abi.QueryDeviceResult, abi.Status) {
		return f.queryDevice(), abi.StatusOK
	}),
	abi.AdminOpQueryObjects: gives(func(f *function, _ falcon.Time, c *abi.QueryObjects) (*abi.ObjectCounts, abi.Status) {
		return f.shard.queryObjects(f.ID, c.Part)
	}),
	abi.AdminOpQueryMemory: gives(func(f *function, _ falcon.Time, c *abi.QueryMemory) (*abi.QueryMemoryResult, abi.Status) {
		return f.queryMemory(c)
	}),
	abi.AdminOpQueryViolation: gives(func(f *function, _ falcon.Time, c *abi.QueryViolation) (*violation, abi.Status) {
		return f.queryViolation(c)
	}),

	abi.AdminOpAllocPD: gives(func(f *function, _ falcon.Time, _ *nothing) (*abi.AllocPDResult, abi.Status) {
		n, st := f.verbs.AllocPD()
		return &abi.AllocPDResult{PDN: n}, st
	}),
	abi.AdminOpDeallocPD: does(func(f *function, _ falcon.Time, c *abi.DeallocPD) abi.Status { return f.verbs.DeallocPD(c.PDN) }),

	abi.AdminOpRegMR: func(f *function, _ falcon.Time, cmd *abi.AdminCmd, _ []byte) (st abi.Status) {
		var c abi.RegMR
		c.Unmarshal(cmd.Params[:])
		f.admin.regID = cmd.ID
		f.admin.reg, st = f.verbs.StartRegMR(&c)
		return st
	},
	abi.AdminOpReregMR: func(f *function, _ falcon.Time, cmd *abi.AdminCmd, _ []byte) (st abi.Status) {
		var c abi.ReregMR
		c.Unmarshal(cmd.Params[:])
		f.admin.regID = cmd.ID
		f.admin.reg, st = f.verbs.StartReregMR(&c)
		return st
	},
	abi.AdminOpDeregMR: does(func(f *function, _ falcon.Time, c *abi.DeregMR) abi.Status { return f.verbs.DeregMR(c.LKey) }),
	abi.AdminOpAllocMW: gives(func(f *function, _ falcon.Time, c *abi.AllocMW) (*abi.AllocMWResult, abi.Status) {
		key, st := f.verbs.AllocMW(c)
		return &abi.AllocMWResult{RKey: key}, st
	}),
	abi.AdminOpDeallocMW: does(func(f *function, _ falcon.Time, c *abi.DeallocMW) abi.Status { return f.verbs.DeallocMW(c.RKey) }),

	abi.AdminOpCreateCQ: gives(func(f *function, _ falcon.Time, c *abi.CreateCQ) (*abi.CreateCQResult, abi.Status) {
		n, st := f.createCQ(c)
		return &abi.CreateCQResult{CQN: n}, st
	}),
	abi.AdminOpResizeCQ:  does(func(f *function, _ falcon.Time, c *abi.ResizeCQ) abi.Status { return f.verbs.ResizeCQ(c) }),
	abi.AdminOpModifyCQ:  does(func(f *function, _ falcon.Time, c *abi.ModifyCQ) abi.Status { return f.verbs.ModifyCQ(c) }),
	abi.AdminOpDestroyCQ: does(func(f *function, _ falcon.Time, c *abi.DestroyCQ) abi.Status { return f.destroyCQ(c.CQN) }),

	abi.AdminOpCreateQP: gives(func(f *function, _ falcon.Time, c *abi.CreateQP) (*abi.CreateQPResult, abi.Status) {
		n, st := f.verbs.CreateQP(c)
		return &abi.CreateQPResult{QPN: n}, st
	}),
	abi.AdminOpModifyQP: does((*function).modifyQP),
	abi.AdminOpQueryQP: gives(func(f *function, _ falcon.Time, c *abi.QueryQP) (*abi.QueryQPResult, abi.Status) {
		r, st := f.verbs.QueryQP(c.QPN)
		return &r, st
	}),
	abi.AdminOpSetQPPath: does(func(f *function, _ falcon.Time, c *abi.QPPath) abi.Status { return f.verbs.SetQPPath(c) }),
	abi.AdminOpQueryQPPath: gives(func(f *function, _ falcon.Time, c *abi.QueryQP) (*abi.QPPath, abi.Status) {
		r, st := f.verbs.QueryQPPath(c.QPN)
		return &r, st
	}),
	abi.AdminOpDestroyQP: does((*function).destroyQP),

	abi.AdminOpCreateSRQ: gives(func(f *function, _ falcon.Time, c *abi.CreateSRQ) (*abi.CreateSRQResult, abi.Status) {
		n, st := f.verbs.CreateSRQ(c)
		return &abi.CreateSRQResult{SRQN: n}, st
	}),
	abi.AdminOpModifySRQ: gives(func(f *function, _ falcon.Time, c *abi.ModifySRQ) (*abi.ModifySRQResult, abi.Status) {
		n, st := f.verbs.ModifySRQ(c)
		return &abi.ModifySRQResult{Consumer: n}, st
	}),
	abi.AdminOpQuerySRQ: gives(func(f *function, _ falcon.Time, c *abi.QuerySRQ) (*abi.QuerySRQResult, abi.Status) {
		r, st := f.verbs.QuerySRQ(c.SRQN)
		return &r, st
	}),
	abi.AdminOpDestroySRQ: does(func(f *function, _ falcon.Time, c *abi.DestroySRQ) abi.Status { return f.verbs.DestroySRQ(c.SRQN) }),
	abi.AdminOpOpenXRCD: gives(func(f *function, _ falcon.Time, _ *nothing) (*abi.OpenXRCDResult, abi.Status) {
		n, st := f.verbs.OpenXRCD()
		return &abi.OpenXRCDResult{XRCDN: n}, st
	}),
	abi.AdminOpCloseXRCD: does(func(f *function, _ falcon.Time, c *abi.CloseXRCD) abi.Status { return f.verbs.CloseXRCD(c.XRCDN) }),

	abi.AdminOpCreateAH: gives(func(f *function, now falcon.Time, c *abi.CreateAH) (*abi.CreateAHResult, abi.Status) {
		n, st := f.verbs.CreateAH(now, c)
		return &abi.CreateAHResult{AHN: n}, st
	}),
	abi.AdminOpDestroyAH: does(func(f *function, now falcon.Time, c *abi.DestroyAH) abi.Status { return f.verbs.DestroyAH(now, c.AHN) }),
}

// modifyQP is the ModifyQP command. What it does to a queue pair's state may begin or end a
// connection.
func (f *function) modifyQP(now falcon.Time, c *abi.ModifyQP) abi.Status {
	st := f.verbs.ModifyQP(now, c)
	if st == abi.StatusOK && c.Mask&abi.QPAttrState != 0 {
		switch c.State {
		case abi.QPStateReset, abi.QPStateErr:
			f.endConnections(now, c.QPN)
		case abi.QPStateRTR:
			f.wire(now, c.QPN)
		}
	}
	return st
}

// destroyQP is the DestroyQP command.
func (f *function) destroyQP(now falcon.Time, c *abi.DestroyQP) abi.Status {
	st := f.verbs.DestroyQP(now, c.QPN)
	if st == abi.StatusOK {
		f.endConnections(now, c.QPN)
	}
	return st
}

// commandPages bounds the page list entries that a command reads at once.
func commandPages(cmd *abi.AdminCmd) int {
	p := cmd.Params[:]
	switch cmd.Opcode {
	case abi.AdminOpCreateCQ:
		var c abi.CreateCQ
		c.Unmarshal(p)
		return queues.PagesFor(0, ring.CQLayout(c.Log2Entries).Size())
	case abi.AdminOpResizeCQ:
		var c abi.ResizeCQ
		c.Unmarshal(p)
		return queues.PagesFor(0, ring.CQLayout(c.Log2Entries).Size())
	case abi.AdminOpCreateQP:
		var c abi.CreateQP
		c.Unmarshal(p)
		return queues.PagesFor(0, ring.QueueLayout(c.SQLog2Entries, c.SQLog2Stride).Size()) +
			queues.PagesFor(0, ring.QueueLayout(c.RQLog2Entries, c.RQLog2Stride).Size())
	case abi.AdminOpCreateSRQ:
		var c abi.CreateSRQ
		c.Unmarshal(p)
		return queues.PagesFor(0, ring.QueueLayout(c.Log2Entries, c.Log2Stride).Size())
	case abi.AdminOpModifySRQ:
		var c abi.ModifySRQ
		c.Unmarshal(p)
		return queues.PagesFor(0, ring.QueueLayout(c.Log2Entries, maxLog2Stride).Size())
	}
	return 1
}

// maxLog2Stride is the log2 of the longest entry of a queue in bytes.
const maxLog2Stride = 12
