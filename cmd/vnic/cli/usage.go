package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/falcon-vnic/vnic/device/config"
)

// Exit statuses, as docs/operations.md lists them.
const (
	ExitFailed = 1 // what was asked for could not be done
	ExitUsage  = 2 // the command line is wrong; nothing was done
)

// UsageError is an error in the command line that the command itself found.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// failedError is an error of a command that ran: its command line had the right form.
type failedError struct{ error }

func (e failedError) Unwrap() error { return e.error }

// CommandFailed is the exit status of a command that this one ran for the user, and that said itself
// what was wrong.
type CommandFailed int

func (s CommandFailed) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// ExitStatus returns the exit status for an error of the command tree.
func ExitStatus(err error) int {
	var usage UsageError
	var failed failedError
	var command CommandFailed
	switch {
	case err == nil:
		return 0
	case errors.As(err, &command):
		return int(command)
	case errors.As(err, &usage) || !errors.As(err, &failed):
		return ExitUsage
	}
	return ExitFailed
}

// Root returns the program with its commands. If a command line is wrong, they say what would be
// right.
func Root(version string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:           "vnic",
		Short:         "a software NIC for QEMU guests: RDMA over Falcon in PSP tunnel mode",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	c.AddCommand(commands...)
	strict(c)
	return c
}

// GroupAnnotation marks a command that only groups its subcommands.
const GroupAnnotation = "group"

// strict makes all commands of the tree refuse a wrong command line, and say what would be right.
func strict(root *cobra.Command) {
	root.SetHelpCommand(helpCommand(root))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.SetFlagErrorFunc(explainFlag)
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .Annotations."+GroupAnnotation+")}}", 1))
	Walk(root, func(c *cobra.Command) {
		if !c.Runnable() {
			c.Annotations = map[string]string{GroupAnnotation: "yes"}
			c.Args, c.RunE = cobra.ArbitraryArgs, noSubcommand
		}
		args, run := c.Args, c.RunE
		if args == nil {
			args = cobra.ArbitraryArgs
		}
		c.Args = func(c *cobra.Command, given []string) error {
			if err := args(c, given); err != nil {
				return err
			}
			return missingFlags(c)
		}
		if run == nil {
			return
		}
		c.RunE = func(c *cobra.Command, given []string) error {
			if err := run(c, given); err != nil {
				return failedError{err}
			}
			return nil
		}
	})
}

// Walk calls f with every command of a tree.
func Walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		Walk(sub, f)
	}
}

// noSubcommand runs when a group of commands is called without one of them. The program itself
// prints its help, any other group is an error.
func noSubcommand(c *cobra.Command, args []string) error {
	switch {
	case len(args) > 0:
		return UnknownCommand(c, args[0])
	case !c.HasParent():
		return c.Help()
	}
	return Usagef("%sa command is missing; use one of %s", Place(c), strings.Join(Subcommands(c), ", "))
}

func UnknownCommand(c *cobra.Command, name string) error {
	known := Subcommands(c)
	if n := Nearest(name, known); n != "" {
		return Usagef("%sunknown command %q; did you mean %q?", Place(c), name, n)
	}
	return Usagef("%sunknown command %q; use one of %s", Place(c), name, strings.Join(known, ", "))
}

func Subcommands(c *cobra.Command) (names []string) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() || sub.Name() == "help" {
			names = append(names, sub.Name())
		}
	}
	return names
}

// Nearest returns the known word that was probably meant, or "" if none is near.
func Nearest(word string, known []string) string {
	var begun []string
	for _, k := range known {
		if strings.HasPrefix(k, word) {
			begun = append(begun, k)
		}
	}
	if len(begun) == 1 {
		return begun[0]
	}
	return config.Nearest(word, known)
}

// Place returns the beginning of an error about a command: its name, as in "show: ", or nothing for
// the program itself.
func Place(c *cobra.Command) string {
	if !c.HasParent() {
		return ""
	}
	_, path, _ := strings.Cut(c.CommandPath(), " ")
	return path + ": "
}

// Arguments checks the number of arguments; most < 0 means no upper limit.
func Arguments(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%san argument is missing; write: %s", Place(c), c.UseLine())
		case most >= 0 && len(args) > most:
			return fmt.Errorf("%sunexpected argument %q; write: %s", Place(c), args[most], c.UseLine())
		}
		return nil
	}
}

// missingFlags returns an error if a required flag is missing.
func missingFlags(c *cobra.Command) (err error) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if err == nil && len(f.Annotations[cobra.BashCompOneRequiredFlag]) > 0 && !f.Changed {
			_, usage := pflag.UnquoteUsage(f)
			err = fmt.Errorf("%s--%s is missing: %s", Place(c), f.Name, usage)
		}
	})
	return err
}

// Kinds describes the values of flags, by pflag's name for their type.
var Kinds = map[string]string{
	"bool": "true or false", "duration": "a time with its unit, as 10ms or 5s", "stringToString": "NAME=VALUE",
	"int": "a whole number", "int64": "a whole number", "uint64": "a whole number from 0",
	"uint8": "a whole number from 0 to 255", "uint32": "a whole number from 0 to 4294967295",
}

// explainFlag replaces pflag's error about a flag by one in this program's words.
func explainFlag(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var bad *pflag.InvalidValueError
	var empty *pflag.ValueRequiredError
	path := Place(c)
	switch {
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			return fmt.Errorf("%sunknown flag -%s; %s --help lists the flags", path, name, c.CommandPath())
		}
		var known []string
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if n := Nearest(name, known); n != "" {
			return fmt.Errorf("%sunknown flag --%s; did you mean --%s?", path, name, n)
		}
		return fmt.Errorf("%sunknown flag --%s; %s --help lists the flags", path, name, c.CommandPath())
	case errors.As(err, &bad):
		f := bad.GetFlag()
		if kind, ok := Kinds[f.Value.Type()]; ok {
			return fmt.Errorf("%s--%s %q: write %s", path, f.Name, bad.GetValue(), kind)
		}
		return fmt.Errorf("%s--%s: %w", path, f.Name, errors.Unwrap(bad))
	case errors.As(err, &empty):
		_, usage := pflag.UnquoteUsage(empty.GetFlag())
		return fmt.Errorf("%s--%s has no value: %s", path, empty.GetFlag().Name, usage)
	}
	return fmt.Errorf("%s%w", path, err)
}

// helpCommand returns `vnic help`.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND ...]", Short: "what a command does and takes",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if c, rest, err := root.Find(args); err == nil && len(rest) == 0 {
				return Subcommands(c), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return UnknownCommand(c, rest[0])
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}
