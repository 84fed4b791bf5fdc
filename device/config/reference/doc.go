// Command reference writes docs/configuration.md, the reference of a NIC's configuration file, from
// the types and tables that read that file: names, values and meanings are the tags of package
// config's fields and the keys of falcon.Profile and of the congestion control algorithms; defaults
// are what config.Parse sets.
//
//	reference FILE
package main
