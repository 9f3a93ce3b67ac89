// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubectlmaintenance is `kubectl maintenance`, the plugin with which users start, watch and
// end maintenances of nodes.
//
// Each command reads objects from the two APIs and passes them to package show, which formats the
// lines. Package screen handles the differences between a terminal and a pipe. Everything that
// tests replace (time, names, terminals) is a field of environment.
package kubectlmaintenance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/pkg/version"
)

// manager is the field manager of the plugin's writes, and the prefix of its user agent. It must
// not begin with kubectl: Flux takes over the fields of such managers and undoes what they have
// set, so it would continue a drain that a user has paused.
const manager = "haulout-plugin"

type clients struct {
	kube    kubernetes.Interface
	haulout clientset.Interface
	// openAPI reads the OpenAPI documents of the cluster.
	openAPI openapi.ClientWithContext
}

type environment struct {
	genericiooptions.IOStreams
	flags *genericclioptions.ConfigFlags
	// labels is the label selector of the maintenances that status shows; "" shows all.
	labels string
	// connect creates the clients according to the flags.
	connect func() (clients, error)
	now     func() time.Time
	// suffix returns the unique part of a generated name.
	suffix func() string
	// interactive reports whether the standard input is a terminal, so that the command can ask the
	// user for a confirmation.
	interactive func() bool
	// keyboard returns the keys of the terminal in raw mode, and what ends that mode; nil without a
	// terminal.
	keyboard func() (keys io.Reader, restore func())
	screen   func(io.Writer) *screen.Screen
}

// Run runs the plugin as a program and returns its exit code.
func Run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), endSignals()...)
	defer stop()
	// After the first signal, the second one ends the program immediately.
	context.AfterFunc(ctx, stop)
	silenceLibraries()
	e := newEnvironment(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	return e.run(ctx, args)
}

// silenceLibraries keeps client-go's log out of the terminal: the commands print errors themselves.
// KUBECTL_MAINTENANCE_V=6 enables the log.
func silenceLibraries() {
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	if v := os.Getenv("KUBECTL_MAINTENANCE_V"); v != "" {
		_ = flags.Set("v", v)
		return
	}
	_ = flags.Set("logtostderr", "false")
	_ = flags.Set("alsologtostderr", "false")
	_ = flags.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
}

func newEnvironment(streams genericiooptions.IOStreams) *environment {
	e := &environment{
		IOStreams: streams,
		flags:     genericclioptions.NewConfigFlags(true).WithWarningPrinter(streams),
		now:       time.Now,
		suffix:    func() string { return utilrand.String(5) },
		screen:    func(out io.Writer) *screen.Screen { return screen.New(out, os.Getenv) },
	}
	e.connect = e.connectToCluster
	e.keyboard = func() (io.Reader, func()) { return screen.Keyboard(streams.In) }
	e.interactive = func() bool {
		in, ok := streams.In.(*os.File)
		return ok && term.IsTerminal(int(in.Fd()))
	}
	return e
}

func (e *environment) connectToCluster() (clients, error) {
	config, err := e.flags.ToRESTConfig()
	if err != nil {
		return clients{}, err
	}
	config.UserAgent = manager + "/" + version.Get()
	// API Priority and Fairness limits requests; a client-side limit would only delay large lists.
	config.QPS, config.Burst = -1, 0
	s := e.screen(e.ErrOut)
	config.WarningHandler = escapedWarnings{
		rest.NewWarningWriter(e.ErrOut, rest.WarningWriterOptions{Deduplicate: true, Color: s.Colors()}), s.Escape,
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return clients{}, err
	}
	haulout, err := clientset.NewForConfig(config)
	return clients{kube: kube, haulout: haulout, openAPI: openapi.NewClientWithContext(kube.Discovery().RESTClient())}, err
}

// escapedWarnings escapes the warnings of the server, which quote names and messages of objects,
// before they are printed.
type escapedWarnings struct {
	rest.WarningHandler
	escape func(string) string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w escapedWarnings) HandleWarningHeader(code int, agent, text string) {
	w.WarningHandler.HandleWarningHeader(code, agent, w.escape(text))
}

// Scripts can rely on the following exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitTimeout     = 2
	exitBlocked     = 3
	exitEnded       = 4
	exitPaused      = 5
	exitPodsKept    = 6
	exitInterrupted = 130
)

// exitCodes are the meanings of the exit codes, for the help of the plugin. docs/kubectl-plugin.md
// has the same sentences.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{exitDone, "done: the state is reached, or nothing is blocked"},
	{exitFailed, "an error, a refusal, or the answer no"},
	{exitTimeout, "the --timeout passed while the server made progress, or waited for something that ends by itself; single pods may be " +
		"blocked. The server continues"},
	{exitBlocked, "a user must act. The --timeout passed, and the maintenance is stuck: its condition Progressing is False, or its STATUS " +
		"is NoNodes, NotAuthorized or NotCordoned. For evacuate, the pod is blocked. For blockers and preview, they have found a " +
		"problem. For rollout status, the rollout is halted, not authorized or SyncFailed, or has nodes that have failed, are blocked or " +
		"are skipped. Without --timeout, the commands go on waiting"},
	{exitEnded, "the maintenance was completed or deleted, or the evacuation cancelled, or the offer of the node withdrawn, while the command waited for it"},
	{exitPaused, "the --timeout passed while the maintenance was paused"},
	{exitPodsKept, "the nodes are drained, but pods were kept running on purpose, such as those of a DaemonSet that would be recreated; the " +
		"output names them. With --ignore-daemonsets, the exit code is 0 instead"},
	{exitInterrupted, "interrupted; the server continues"},
}

// exitError ends the plugin with a specific exit code. Without a message nothing is printed.
type exitError struct {
	code    int
	message string
}

// Error implements error.
func (e *exitError) Error() string { return e.message }

func exitWith(code int, format string, args ...any) error {
	return &exitError{code: code, message: fmt.Sprintf(format, args...)}
}

// run runs a command and prints its error on the error stream.
func (e *environment) run(ctx context.Context, args []string) int {
	cmd := e.newCommand()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = &exitError{code: exitInterrupted}
	}
	code := exitFailed
	var withCode *exitError
	if errors.As(err, &withCode) {
		code = withCode.code
	}
	if text := explain(err); text != "" {
		text += didYouMean(e.suggestName(ctx, err))
		e.screen(e.ErrOut).Error("error: ", text)
	}
	return code
}

// explain adds a hint to an API error if Haulout may be missing or down.
func explain(err error) string {
	text := err.Error()
	switch {
	case answer.APIMissing(err):
		return fmt.Sprintf("this cluster does not serve %s: Haulout is not installed, or its API is not registered (%s)", v1alpha1.SchemeGroupVersion, text)
	case apierrors.IsServiceUnavailable(err):
		return fmt.Sprintf("%s (is Haulout running? See kubectl get apiservice %s.%s)", text, v1alpha1.SchemeGroupVersion.Version, v1alpha1.GroupName)
	}
	return text
}

const about = `Take nodes out of service and return them to service.

A maintenance is an object in the cluster (kubectl get nodemaintenances.maintenance.haulout.dev): a selector of
nodes, and the stage that these nodes should reach. The server does the work and reports what it waits for; you
can close this terminal at any time.

  Idle       the maintenance is announced; nodes and pods are not changed
  Cordon     the nodes are unschedulable
  Drain      pods leave, wave by wave, within their disruption budgets
  Complete   the nodes are schedulable again

Exit codes
%s
Shell completion of names and nodes works as in kubectl; it needs kubectl_complete-maintenance in the PATH.`

// help returns the help of the plugin.
func help() string {
	const indent = "\n       "
	var codes strings.Builder
	for _, c := range exitCodes {
		fmt.Fprintf(&codes, "  %-4d ", c.code)
		column := 0
		for word := range strings.FieldsSeq(c.meaning) {
			switch {
			case column == 0:
			case column+1+len(word) > helpColumns-len(indent):
				codes.WriteString(indent)
				column = 0
			default:
				word = " " + word
			}
			codes.WriteString(word)
			column += len(word)
		}
		codes.WriteString("\n")
	}
	return fmt.Sprintf(about, codes.String())
}

// helpColumns is the width of help texts.
const helpColumns = 116

func (e *environment) newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-maintenance",
		Short:         "Take nodes out of service and return them to service",
		Long:          help(),
		Version:       version.Get(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl maintenance"},
		Args:          knownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetIn(e.In)
	root.SetOut(e.Out)
	root.SetErr(e.ErrOut)
	root.AddGroup(
		&cobra.Group{ID: groupGo, Title: "Take nodes out of service:"},
		&cobra.Group{ID: groupLook, Title: "See what happens:"},
		&cobra.Group{ID: groupEnd, Title: "Change the stage, pause, return nodes to service:"},
		&cobra.Group{ID: groupPods, Title: "Single pods:"},
		&cobra.Group{ID: groupPools, Title: "Whole pools, and work on their nodes:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	add(groupGo, e.newStartCommand(), e.newDrainCommand(), e.newPreviewCommand())
	add(groupLook, e.newStatusCommand(), e.newBlockersCommand(), e.newWaitCommand(), e.newHistoryCommand())
	add(groupEnd, e.newStageCommand(), e.newPauseCommand(), e.newResumeCommand(), e.newCompleteCommand(), e.newCancelCommand())
	add(groupPods, e.newExplainCommand(), e.newEvacuateCommand())
	add(groupPools, e.newRolloutCommand(), e.newTakeCommand(), e.newDoneCommand())
	root.AddCommand(newOptionsCommand(), e.newVersionCommand())
	// Completion works through kubectl, which would not find a script for kubectl-maintenance.
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetUsageTemplate(usageTemplate)
	e.flags.AddFlags(root.PersistentFlags())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd == root {
			// The flags of an unknown command are unknown, too.
			if unknown := knownCommand(root, cmd.Flags().Args()); unknown != nil {
				return unknown
			}
		}
		return fmt.Errorf("%w (%s --help lists the flags)", err, cmd.CommandPath())
	})
	return root
}

const (
	groupGo    = "go"
	groupLook  = "look"
	groupEnd   = "end"
	groupPods  = "pods"
	groupPools = "pools"
)

// knownCommand is for the root command: its arguments are the name of an unknown command. The text
// of cobra has control characters, which the plugin would escape.
func knownCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	similar := didYouMean(strings.Join(root.SuggestionsFor(args[0]), " or "))
	return fmt.Errorf("unknown command %q%s (%s --help lists the commands)", args[0], similar, root.CommandPath())
}

// newOptionsCommand returns the command that lists the flags of all commands. The help of each
// command omits them, so that its own flags are easy to find.
func newOptionsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "options", Short: "List the flags that every command takes", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "Every command takes these flags, which are those of kubectl:\n\n%s", cmd.InheritedFlags().FlagUsages())
		},
	}
}

// usageTemplate is cobra's template, except that it refers to the options command for the flags of
// all commands.
const usageTemplate = `Usage:{{if and .Runnable (not .HasAvailableSubCommands)}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND [flags]{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if (and (eq .GroupID $group.ID) .IsAvailableCommand)}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{if not .AllChildCommandsHaveGroup}}

Other commands:{{range $cmds}}{{if (and (eq .GroupID "") .IsAvailableCommand)}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalNonPersistentFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableSubCommands}}

"{{.CommandPath}} COMMAND --help" describes a command.{{else}}

"{{.Root.CommandPath}} options" lists the flags that every command takes.{{end}}
`
