package conn

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// errorStatus translates an error of the connection manager to the driver's status.
func errorStatus(err error) abi.Status {
	for _, e := range []struct {
		err error
		st  abi.Status
	}{
		{nil, abi.StatusOK},
		{cm.ErrNoRoute, abi.StatusUnreachable},
		{cm.ErrPeerDown, abi.StatusUnreachable},
		{cm.ErrNotLocal, abi.StatusDenied},
		{cm.ErrLimit, abi.StatusNoResources},
		{ErrNoCID, abi.StatusNoResources},
		{cm.ErrNotFound, abi.StatusNotFound},
		{cm.ErrState, abi.StatusBadState},
		{cm.ErrInUse, abi.StatusAddressInUse},
		{cm.ErrInvalid, abi.StatusInvalidArgument},
	} {
		if errors.Is(err, e.err) {
			return e.st
		}
	}
	return abi.StatusNoResources
}

// reasonStatus translates a reason to the Status of an Unreachable event.
func reasonStatus(r cm.Reason) abi.Status {
	switch r {
	case cm.ReasonTimeout:
		return abi.StatusTimeout
	case cm.ReasonNoListener, cm.ReasonConsumer, cm.ReasonTenant, cm.ReasonGID:
		return abi.StatusRefused
	case cm.ReasonNoResources:
		return abi.StatusNoResources
	case cm.ReasonInvalid:
		return abi.StatusInvalidArgument
	case cm.ReasonCanceled, cm.ReasonFunctionGone, cm.ReasonLocal:
		return abi.StatusAborted
	}
	return abi.StatusUnreachable
}
