package device

import "github.com/falcon-vnic/vnic/queues/abi"

// needs returns the features that a command is part of, which its driver must
// have agreed on (DRV-103).
func needs(cmd *abi.AdminCmd) uint64 {
	switch cmd.Opcode {
	case abi.AdminOpCreateAH, abi.AdminOpDestroyAH:
		return abi.FeatureDatagrams
	case abi.AdminOpCreateSRQ, abi.AdminOpModifySRQ, abi.AdminOpQuerySRQ, abi.AdminOpDestroySRQ, abi.AdminOpOpenXRCD, abi.AdminOpCloseXRCD,
		abi.AdminOpAllocMW, abi.AdminOpDeallocMW, abi.AdminOpReregMR, abi.AdminOpResizeCQ, abi.AdminOpModifyCQ:
		return abi.FeatureExtendedVerbs
	case abi.AdminOpCreateQP:
		return queuePairNeeds(cmd)
	}
	return 0
}

func queuePairNeeds(cmd *abi.AdminCmd) uint64 {
	var c abi.CreateQP
	c.Unmarshal(cmd.Params[:])
	need := uint64(0)
	switch c.Type {
	case abi.QPTypeUD, abi.QPTypeGSI:
		need = abi.FeatureDatagrams
	case abi.QPTypeXRCSend, abi.QPTypeXRCRecv:
		need = abi.FeatureExtendedVerbs
	}
	if c.Ordering != abi.OrderingStrong || c.ErrorMode != abi.ErrorModeVerbs {
		need |= abi.FeatureExtendedVerbs
	}
	return need
}

// lacks reports whether a command is of a feature that is not in use.
func (f *function) lacks(cmd *abi.AdminCmd) bool {
	return needs(cmd)&^f.binding.features != 0
}
