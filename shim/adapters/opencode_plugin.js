// A plugin of opencode, for conversations. opencode only asks about a shell command if its parser finds a program other
// than `cd`. It runs `> file`, `cd . > file` and `export -p > file` without asking. The prefix `:` is a program, so
// opencode asks about each command.
const UNASKED = /^(cd|chdir|popd|pushd|declare|typeset|export|readonly|local|unset|unsetenv|if|for|select|while|until|case|function|time|coproc)$/

export const AskAboutEachCommand = async () => ({
  "tool.execute.before": async (call, output) => {
    if (call.tool !== "bash" || !process.argv.includes("acp")) return
    const command = String(output.args.command)
    const program = /^[A-Za-z0-9_./-]+(?= |$)/.exec(command)
    if (program && !UNASKED.test(program[0])) return
    output.args.command = `:\n${command}`
  },
})
