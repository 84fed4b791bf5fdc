// Package explain is vnic explain, which prints what the documentation says of a rule, status, event,
// fault, counter or metric. The pages are part of the program; it asks no NIC.
package explain
