package abi

import "reflect"

// recorder is a Handler that notes what it is asked and answers with what it is told.
type recorder struct {
	status Status
	fill   func(v reflect.Value) // of results
	vf     uint16                // the VF that was asked for
	called string
	args   []any
	result any
}

func (r *recorder) note(name string, args ...any) Status {
	r.called, r.args = name, args
	return r.status
}

func give[T any](r *recorder, name string, args ...any) (v T, st Status) {
	r.fill(reflect.ValueOf(&v).Elem())
	r.result = v
	return v, r.note(name, args...)
}

func (r *recorder) VF(n uint16) (VFHandler, Status) {
	r.vf = n
	return r, r.status
}

func (r *recorder) QueryDevice() (QueryDeviceResult, Status) {
	return give[QueryDeviceResult](r, "QueryDevice")
}

func (r *recorder) QueryMemory(index uint32) (QueryMemoryResult, Status) {
	return give[QueryMemoryResult](r, "QueryMemory", index)
}

func (r *recorder) QueryViolation(index uint32) (Violation, Status) {
	return give[Violation](r, "QueryViolation", index)
}

func (r *recorder) QueryObjects(part CreditPart) (ObjectCounts, Status) {
	return give[ObjectCounts](r, "QueryObjects", part)
}

func (r *recorder) QueryCounters(first Counter) (Counters, Status) {
	return give[Counters](r, "QueryCounters", first)
}
func (r *recorder) AllocPD() (uint32, Status)             { return give[uint32](r, "AllocPD") }
func (r *recorder) DeallocPD(pdn uint32) Status           { return r.note("DeallocPD", pdn) }
func (r *recorder) RegMR(p *RegMR) Status                 { return r.note("RegMR", p) }
func (r *recorder) DeregMR(lkey uint32) Status            { return r.note("DeregMR", lkey) }
func (r *recorder) CreateCQ(p *CreateCQ) (uint32, Status) { return give[uint32](r, "CreateCQ", p) }
func (r *recorder) DestroyCQ(cqn uint32) Status           { return r.note("DestroyCQ", cqn) }
func (r *recorder) CreateQP(p *CreateQP) (uint32, Status) { return give[uint32](r, "CreateQP", p) }
func (r *recorder) ModifyQP(p *ModifyQP) Status           { return r.note("ModifyQP", p) }
func (r *recorder) QueryQP(qpn uint32) (QueryQPResult, Status) {
	return give[QueryQPResult](r, "QueryQP", qpn)
}
func (r *recorder) DestroyQP(qpn uint32) Status             { return r.note("DestroyQP", qpn) }
func (r *recorder) CreateAH(p *CreateAH) (uint32, Status)   { return give[uint32](r, "CreateAH", p) }
func (r *recorder) DestroyAH(ahn uint32) Status             { return r.note("DestroyAH", ahn) }
func (r *recorder) CreateSRQ(p *CreateSRQ) (uint32, Status) { return give[uint32](r, "CreateSRQ", p) }

func (r *recorder) ModifySRQ(p *ModifySRQ) (uint32, Status) { return give[uint32](r, "ModifySRQ", p) }

func (r *recorder) QuerySRQ(srqn uint32) (QuerySRQResult, Status) {
	return give[QuerySRQResult](r, "QuerySRQ", srqn)
}
func (r *recorder) DestroySRQ(srqn uint32) Status       { return r.note("DestroySRQ", srqn) }
func (r *recorder) OpenXRCD() (uint32, Status)          { return give[uint32](r, "OpenXRCD") }
func (r *recorder) CloseXRCD(xrcdn uint32) Status       { return r.note("CloseXRCD", xrcdn) }
func (r *recorder) AllocMW(p *AllocMW) (uint32, Status) { return give[uint32](r, "AllocMW", p) }
func (r *recorder) DeallocMW(rkey uint32) Status        { return r.note("DeallocMW", rkey) }
func (r *recorder) ReregMR(p *ReregMR) Status           { return r.note("ReregMR", p) }
func (r *recorder) ResizeCQ(p *ResizeCQ) Status         { return r.note("ResizeCQ", p) }
func (r *recorder) AttachMcast(p *Mcast) Status         { return r.note("AttachMcast", p) }
func (r *recorder) DetachMcast(p *Mcast) Status         { return r.note("DetachMcast", p) }
func (r *recorder) AllocMR(p *AllocMR) (RegMRResult, Status) {
	return give[RegMRResult](r, "AllocMR", p)
}
func (r *recorder) AddGID(p *GIDEntry) Status { return r.note("AddGID", p) }
func (r *recorder) DelGID(i uint16) Status    { return r.note("DelGID", i) }
func (r *recorder) QueryGID(i uint16) (GIDEntry, Status) {
	return give[GIDEntry](r, "QueryGID", i)
}
func (r *recorder) ModifyCQ(p *ModifyCQ) Status             { return r.note("ModifyCQ", p) }
func (r *recorder) CMListen(service uint64) Status          { return r.note("CMListen", service) }
func (r *recorder) CMUnlisten(service uint64) Status        { return r.note("CMUnlisten", service) }
func (r *recorder) CMConnect(p *CMConnect) (uint32, Status) { return give[uint32](r, "CMConnect", p) }
func (r *recorder) CMAccept(p *CMAccept) Status             { return r.note("CMAccept", p) }
func (r *recorder) CMReject(p *CMReject) Status             { return r.note("CMReject", p) }
func (r *recorder) CMDisconnect(cmid uint32) Status         { return r.note("CMDisconnect", cmid) }
func (r *recorder) VFEnable() Status                        { return r.note("VFEnable") }
func (r *recorder) VFDisable() Status                       { return r.note("VFDisable") }
func (r *recorder) VFReset() Status                         { return r.note("VFReset") }
func (r *recorder) SetVF(p *SetVF) Status                   { return r.note("SetVF", p) }
func (r *recorder) SetVFWindow(p *SetVFWindow) Status       { return r.note("SetVFWindow", p) }
func (r *recorder) SetVFCredits(p *SetVFCredits) Status     { return r.note("SetVFCredits", p) }
func (r *recorder) QueryVF() (QueryVFResult, Status)        { return give[QueryVFResult](r, "QueryVF") }

func (r *recorder) QueryVFCredits(part CreditPart) (CreditCounts, Status) {
	return give[CreditCounts](r, "QueryVFCredits", part)
}
func (r *recorder) SetVFObjects(p *SetVFObjects) Status { return r.note("SetVFObjects", p) }
func (r *recorder) QueryVFObjects(part CreditPart) (ObjectCounts, Status) {
	return give[ObjectCounts](r, "QueryVFObjects", part)
}
