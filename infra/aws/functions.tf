# The functions. Their handlers are commands of the binary, and LOGPLANE_ variables its flags.
locals {
  functions = {
    api       = { memory = var.function_memory, seconds = 60, every = null, policy = data.aws_iam_policy_document.api.json }
    projector = { memory = 1024, seconds = 300, every = "5 minutes", policy = data.aws_iam_policy_document.projector.json }
    lifecycle = { memory = 1024, seconds = 300, every = "1 minute", policy = data.aws_iam_policy_document.lifecycle.json }
    expiry    = { memory = 1024, seconds = 300, every = "1 hour", policy = data.aws_iam_policy_document.expiry.json }
  }

  # What every process of the cell is told. It writes the files of the secret to /tmp/logplane when it starts.
  environment = { for name, value in {
    LOGPLANE_FILES_SECRET       = data.aws_secretsmanager_secret.files.arn
    LOGPLANE_NATS               = join(",", [for zone in local.log_zones : "tls://logplane@${local.log_names[zone]}:4222"])
    LOGPLANE_NATS_CA_FILE       = "/tmp/logplane/nats-ca.crt"
    LOGPLANE_NATS_PASSWORD_FILE = "/tmp/logplane/logplane-password"
    LOGPLANE_BUCKET             = "s3://${aws_s3_bucket.cell.bucket}/${var.prefix}"
    LOGPLANE_S3_REGION          = var.region
    LOGPLANE_HISTORY            = var.history
    FILES_VERSION               = var.files_version # another one ends the processes that have the old files
  } : name => value if value != null }

  # What processes that serve clients are told besides.
  serving_environment = { for name, value in {
    LOGPLANE_TOKEN_AUTH_FILE                  = "/tmp/logplane/tokens.csv"
    LOGPLANE_SERVICE_ACCOUNT_ISSUER           = "https://${var.domain}"
    LOGPLANE_SERVICE_ACCOUNT_SIGNING_KEY_FILE = "/tmp/logplane/service-account.key"
    LOGPLANE_EXTERNAL_ADDRESS                 = "${var.domain}:443"
    LOGPLANE_AUTHENTICATION_CONFIG            = var.authentication_config == null ? null : "/tmp/logplane/${var.authentication_config}"
    LOGPLANE_AUDIT_POLICY_FILE                = var.audit_policy == null ? null : "/tmp/logplane/${var.audit_policy}"
    LOGPLANE_AUDIT_LOG_PATH                   = var.audit_policy == null ? null : "-"
  } : name => value if value != null }

  # The function redirects a watch that reaches its own URL to CloudFront, which sends watches to the watchers.
  api_environment = {
    LOGPLANE_WATCHER_URL              = "https://${var.domain}"
    LOGPLANE_FUNCTION_URL_INVOKE_MODE = var.invoke_mode
  }

  # What var.flags tells each command.
  more = { for command in ["api", "projector", "lifecycle", "expiry", "watcher", "init"] : command => {
    for flag, value in merge(lookup(var.flags, "all", {}), lookup(var.flags, command, {})) : "LOGPLANE_${upper(replace(flag, "-", "_"))}" => value
  } }

  machine_environments = { for command in ["init", "watcher", "projector"] : command => join("\n", [
    for name, value in merge(local.environment, local.serving_environment, local.more[command]) : "${name}=${value}"
  ]) }
}

resource "aws_lambda_function" "cell" {
  for_each      = local.functions
  function_name = "${var.name}-${each.key}"
  description   = "logplane ${each.key}"
  role          = aws_iam_role.function[each.key].arn
  runtime       = "provided.al2023"
  architectures = [var.architecture]
  handler       = each.key
  s3_bucket     = var.artifacts
  s3_key        = "${var.release}/bootstrap.zip"
  memory_size   = each.value.memory
  timeout       = each.value.seconds
  kms_key_arn   = aws_kms_key.cell.arn
  # Jobs run with what other functions of the account leave.
  reserved_concurrent_executions = each.key == "api" ? var.api_concurrency : -1
  environment {
    variables = merge(local.environment, each.key == "api" ? merge(local.serving_environment, local.api_environment) : {}, local.more[each.key])
  }
  vpc_config {
    subnet_ids         = [for zone in var.zones : aws_subnet.private[zone].id]
    security_group_ids = [aws_security_group.clients.id]
  }
  depends_on = [aws_iam_role_policy_attachment.function, aws_cloudwatch_log_group.function]
}

resource "aws_cloudwatch_log_group" "function" {
  for_each          = local.functions
  name              = "/aws/lambda/${var.name}-${each.key}"
  retention_in_days = 30
}

resource "aws_cloudwatch_log_group" "machines" {
  name              = "/${var.name}/machines"
  retention_in_days = 30
}

# Anybody may call the URL, as anybody may reach an API server: Logplane asks for credentials, and api_concurrency bounds
# what strangers cost. AWS's own signature (AWS_IAM with an origin access control) is impossible: it takes the place of
# the Authorization header, in which Kubernetes' clients have theirs, and for a body the client itself would have to send
# x-amz-content-sha256.
resource "aws_lambda_function_url" "api" {
  function_name      = aws_lambda_function.cell["api"].function_name
  authorization_type = "NONE"
  invoke_mode        = var.invoke_mode
}

resource "aws_lambda_permission" "url" {
  statement_id           = "AnybodyMayCallTheURL"
  action                 = "lambda:InvokeFunctionUrl"
  function_name          = aws_lambda_function.cell["api"].function_name
  principal              = "*"
  function_url_auth_type = "NONE"
}

# Since October 2025 AWS asks for both.
resource "aws_lambda_permission" "url_invokes" {
  statement_id             = "AnybodyMayInvokeByTheURL"
  action                   = "lambda:InvokeFunction"
  function_name            = aws_lambda_function.cell["api"].function_name
  principal                = "*"
  invoked_via_function_url = true
}

resource "aws_scheduler_schedule" "job" {
  for_each                     = { for name, function in local.functions : name => function if function.every != null }
  name                         = "${var.name}-${each.key}"
  schedule_expression          = "rate(${each.value.every})"
  schedule_expression_timezone = "UTC"
  flexible_time_window {
    mode = "OFF"
  }
  target {
    arn      = aws_lambda_function.cell[each.key].arn
    role_arn = aws_iam_role.schedule.arn
    # The next one does the work that this one did not.
    retry_policy {
      maximum_retry_attempts = 0
    }
    dead_letter_config {
      arn = aws_sqs_queue.dead.arn
    }
  }
}

data "aws_iam_policy_document" "assumed_by_schedules" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["scheduler.amazonaws.com"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

data "aws_iam_policy_document" "schedule" {
  statement {
    actions   = ["lambda:InvokeFunction"]
    resources = [for name in ["projector", "lifecycle", "expiry"] : aws_lambda_function.cell[name].arn]
  }
  statement {
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.dead.arn]
  }
}

resource "aws_iam_role" "schedule" {
  name               = "${var.name}-schedule"
  assume_role_policy = data.aws_iam_policy_document.assumed_by_schedules.json
}

resource "aws_iam_role_policy" "schedule" {
  name   = "call"
  role   = aws_iam_role.schedule.id
  policy = data.aws_iam_policy_document.schedule.json
}

# Watchers ring when the log has changed: a message is work for the lifecycle, without waiting for its schedule.
resource "aws_sqs_queue" "doorbell" {
  name                       = "${var.name}-doorbell"
  sqs_managed_sse_enabled    = true
  message_retention_seconds  = 3600
  visibility_timeout_seconds = 6 * local.functions.lifecycle.seconds # AWS asks for six times the function's
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = 3
  })
}

# Work that failed three times, and schedules that could not call.
resource "aws_sqs_queue" "dead" {
  name                      = "${var.name}-dead"
  sqs_managed_sse_enabled   = true
  message_retention_seconds = 14 * 24 * 3600
}

resource "aws_lambda_event_source_mapping" "doorbell" {
  event_source_arn                   = aws_sqs_queue.doorbell.arn
  function_name                      = aws_lambda_function.cell["lifecycle"].arn
  batch_size                         = 100
  maximum_batching_window_in_seconds = 1
  scaling_config {
    maximum_concurrency = 2
  }
}

data "aws_iam_policy_document" "doorbell" {
  statement {
    actions   = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"]
    resources = [aws_sqs_queue.doorbell.arn]
  }
}

resource "aws_iam_role_policy" "doorbell" {
  name   = "doorbell"
  role   = aws_iam_role.function["lifecycle"].id
  policy = data.aws_iam_policy_document.doorbell.json
}
