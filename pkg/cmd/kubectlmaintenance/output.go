// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/scheme"
)

// wide is the output format that lists all nodes and pods.
const wide = "wide"

// output is the flag -o and its printers.
type output struct {
	flags *genericclioptions.PrintFlags
	// lines is set if the default format is lines; such a command also supports -o wide.
	lines bool
}

// outputOfObjects is the output of commands that print the name of the object that they wrote,
// followed by the operation.
func outputOfObjects(operation string) *output {
	return &output{flags: genericclioptions.NewPrintFlags(operation).WithTypeSetter(scheme.Scheme)}
}

// outputOfLines is the output of commands that show lines.
func outputOfLines() *output {
	o := outputOfObjects("")
	o.lines = true
	return o
}

// says sets the operation that is printed after the name of an object.
func (o *output) says(operation string) { o.flags.NamePrintFlags.Operation = operation }

func (o *output) addFlags(cmd *cobra.Command) {
	o.flags.AddFlags(cmd)
	formats := o.formats()
	cmd.Flag("output").Usage = fmt.Sprintf("Output format. One of: (%s).", strings.Join(formats, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// formats are the formats that the flag -o takes.
func (o *output) formats() []string {
	formats := o.flags.AllowedFormats()
	if o.lines {
		formats = append(formats, wide)
	}
	slices.Sort(formats)
	return formats
}

func (o *output) format() string { return *o.flags.OutputFormat }

// forPeople reports whether the output consists of lines and not of a document.
func (o *output) forPeople() bool {
	return o.lines && (o.format() == "" && *o.flags.TemplatePrinterFlags.TemplateArgument == "" || o.format() == wide)
}

// options are the options of lines that fit the columns of a screen.
func (o *output) options(s *screen.Screen) show.Options {
	options := fitting(s)
	options.Wide, options.Rows = o.format() == wide, 0
	return options
}

// fitting are the options of lines that fit the rows of the screen, too, unless the user asks for
// all lines.
func (o *output) fitting(s *screen.Screen) show.Options {
	if o.format() == wide {
		return o.options(s)
	}
	return fitting(s)
}

func fitting(s *screen.Screen) show.Options {
	return show.Options{Columns: s.Columns(), Rows: s.Rows(), ASCII: s.ASCII()}
}

// validate returns an error for an unknown format, before the command changes anything.
func (o *output) validate() error {
	if o.forPeople() {
		return nil
	}
	_, err := o.flags.ToPrinter()
	if err != nil && o.lines && genericclioptions.IsNoCompatiblePrinterError(err) {
		return fmt.Errorf("invalid --output %q: it must be one of %s", o.format(), strings.Join(o.formats(), ", "))
	}
	return err
}

// write writes objects one after the other in the requested format.
func (e *environment) write(o *output, objects ...runtime.Object) error {
	printer, err := o.flags.ToPrinter()
	if err != nil {
		return err
	}
	var document bytes.Buffer
	for _, object := range objects {
		if err := printer.PrintObj(object, &document); err != nil {
			return err
		}
	}
	return e.screen(e.Out).Write(document.Bytes())
}

// writeAll writes a list in the requested format: as a list, or one object after the other if the
// format has no lists.
func (e *environment) writeAll(o *output, list runtime.Object) error {
	objects, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	if o.format() != "name" {
		if len(objects) == 0 {
			// Write [] instead of null.
			if err := meta.SetList(list, []runtime.Object{}); err != nil {
				return err
			}
		}
		return e.write(o, list)
	}
	return e.write(o, objects...)
}

// show prints lines that are not redrawn, within the columns of the terminal.
func (e *environment) show(lines []screen.Line) {
	s := e.screen(e.Out)
	s.Println(fitting(s).Fit(lines...)...)
}

// The strategies of --dry-run.
const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

type dryRun struct{ strategy string }

func (d *dryRun) addFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.strategy, "dry-run", dryRunNone,
		`Must be "none", "server", or "client". With client, only print the object that would be sent. `+
			`With server, send it; the server checks it and returns warnings, but does not store it.`)
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions([]string{dryRunNone, dryRunClient, dryRunServer}, cobra.ShellCompDirectiveNoFileComp))
}

// complete validates the flag and adds it to the printed operation.
func (d *dryRun) complete(o *output) error {
	switch d.strategy {
	case dryRunNone:
		return nil
	case dryRunClient:
		return o.flags.Complete("%s (dry run)")
	case dryRunServer:
		return o.flags.Complete("%s (server dry run)")
	}
	return fmt.Errorf("invalid --dry-run %q: it must be none, client or server", d.strategy)
}

func (d *dryRun) isOn() bool { return d.strategy != dryRunNone }

// inRequests returns the value of the field dryRun of write options.
func (d *dryRun) inRequests() []string {
	if d.strategy == dryRunServer {
		return []string{metav1.DryRunAll}
	}
	return nil
}
