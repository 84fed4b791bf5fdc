// Package vf is vnic vf, which changes functions of a running NIC by its control API. The keys, with
// their text and completion, are the table of device/settings.
package vf
