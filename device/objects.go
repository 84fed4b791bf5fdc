package device

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// objectCommand carries out the admin commands for the verbs objects of ABI 1.2. known is false when cmd is none of them.
func (f *function) objectCommand(now falcon.Time, cmd *abi.AdminCmd, result []byte) (st abi.Status, known bool) {
	p, v := cmd.Params[:], f.verbs
	switch cmd.Opcode {
	case abi.AdminOpCreateSRQ:
		var c abi.CreateSRQ
		c.Unmarshal(p)
		var r abi.CreateSRQResult
		r.SRQN, st = v.CreateSRQ(&c)
		r.Marshal(result)
	case abi.AdminOpModifySRQ:
		var c abi.ModifySRQ
		c.Unmarshal(p)
		var r abi.ModifySRQResult
		r.Consumer, st = v.ModifySRQ(&c)
		r.Marshal(result)
	case abi.AdminOpQuerySRQ:
		var c abi.QuerySRQ
		c.Unmarshal(p)
		var r abi.QuerySRQResult
		r, st = v.QuerySRQ(c.SRQN)
		r.Marshal(result)
	case abi.AdminOpDestroySRQ:
		var c abi.DestroySRQ
		c.Unmarshal(p)
		st = v.DestroySRQ(c.SRQN)
	case abi.AdminOpOpenXRCD:
		var r abi.OpenXRCDResult
		r.XRCDN, st = v.OpenXRCD()
		r.Marshal(result)
	case abi.AdminOpCreateAH:
		var c abi.CreateAH
		c.Unmarshal(p)
		var r abi.CreateAHResult
		r.AHN, st = v.CreateAH(now, &c)
		r.Marshal(result)
	case abi.AdminOpDestroyAH:
		var c abi.DestroyAH
		c.Unmarshal(p)
		st = v.DestroyAH(now, c.AHN)
	case abi.AdminOpCloseXRCD:
		var c abi.CloseXRCD
		c.Unmarshal(p)
		st = v.CloseXRCD(c.XRCDN)
	case abi.AdminOpResizeCQ:
		var c abi.ResizeCQ
		c.Unmarshal(p)
		st = v.ResizeCQ(&c)
	case abi.AdminOpModifyCQ:
		var c abi.ModifyCQ
		c.Unmarshal(p)
		st = v.ModifyCQ(&c)
	case abi.AdminOpSetQPPath:
		var c abi.QPPath
		c.Unmarshal(p)
		st = v.SetQPPath(&c)
	case abi.AdminOpQueryQPPath:
		var c abi.QueryQP
		c.Unmarshal(p)
		var r abi.QPPath
		r, st = v.QueryQPPath(c.QPN)
		r.Marshal(result)
	case abi.AdminOpAllocMW:
		var c abi.AllocMW
		c.Unmarshal(p)
		var r abi.AllocMWResult
		r.RKey, st = v.AllocMW(&c)
		r.Marshal(result)
	case abi.AdminOpDeallocMW:
		var c abi.DeallocMW
		c.Unmarshal(p)
		st = v.DeallocMW(c.RKey)
	case abi.AdminOpReregMR:
		var c abi.ReregMR
		c.Unmarshal(p)
		f.admin.regID = cmd.ID
		f.admin.reg, st = v.StartReregMR(&c) // readPages completes it
	default:
		return 0, false
	}
	return st, true
}

// objectPages bounds the page list entries that a command of objectCommand reads at once.
func objectPages(cmd *abi.AdminCmd) int {
	switch cmd.Opcode {
	case abi.AdminOpCreateSRQ:
		var c abi.CreateSRQ
		c.Unmarshal(cmd.Params[:])
		return queues.PagesFor(0, ring.QueueLayout(c.Log2Entries, c.Log2Stride).Size())
	case abi.AdminOpResizeCQ:
		var c abi.ResizeCQ
		c.Unmarshal(cmd.Params[:])
		return queues.PagesFor(0, ring.CQLayout(c.Log2Entries).Size())
	case abi.AdminOpModifySRQ:
		var c abi.ModifySRQ
		c.Unmarshal(cmd.Params[:])
		return queues.PagesFor(0, ring.QueueLayout(c.Log2Entries, maxLog2Stride).Size())
	}
	return 1
}

// maxLog2Stride is the log2 of the longest entry of a queue in bytes.
const maxLog2Stride = 12
